"""How counts, lists and foreign text are written, in messages and in reports."""

from collections.abc import Iterable


def counted(number: int, noun: str) -> str:
    """Write a number of things.

    >>> counted(1, "seed"), counted(3, "seed")
    ('1 seed', '3 seeds')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def listed(names: Iterable[str]) -> str:
    """Enumerate in words.

    >>> listed(["ema", "swa", "lawa"])
    'ema, swa and lawa'
    """
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def printable(text: str) -> str:
    r"""Replace control characters, which could move a terminal's cursor.

    >>> printable("loss is nan\x1b[2J")
    'loss is nan\\x1b[2J'
    """
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
