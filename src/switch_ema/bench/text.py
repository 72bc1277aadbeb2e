"""Formats counts and lists, and reads text of unknown origin."""

import difflib
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from switch_ema._checks import printable as printable
from switch_ema.bench.errors import UsageError

EVIDENCE, ENDING = "evidence", ".jsonl"
"""First key of an evidence file, which has its format; and the ending of its name."""


def is_evidence(path: Path) -> bool:
    """Whether a path is an evidence file, as ``--publish`` writes it."""
    if path.suffix != ENDING or not path.is_file():
        return False
    with path.open(encoding="utf-8", errors="replace") as file:
        return file.readline().startswith(f'{{"{EVIDENCE}": ')


def counted(number: int, noun: str) -> str:
    """Format a number with its noun.

    >>> counted(1, "seed"), counted(3, "seed")
    ('1 seed', '3 seeds')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def listed(names: Iterable[str], word: str = "and") -> str:
    """Join names as an English list.

    >>> listed(["ema", "swa", "lawa"])
    'ema, swa and lawa'
    """
    *most, last = names
    return f"{', '.join(most)} {word} {last}" if most else last


def unknown(kind: str, name: str, known: Iterable[str], more: str = "") -> UsageError:
    """Return the error for an unknown name, with the closest known one.

    >>> print(unknown("method", "switch_ema", ["ema", "switch-ema"]))
    unknown method 'switch_ema'; did you mean switch-ema? Known are ema, switch-ema.
    """
    known = list(known)
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}? Known" if near else "known"
    return UsageError(f"unknown {kind} {name!r}; {hint} are {', '.join(known)}{more}.")


def read_utf8(path: Path) -> str:
    """Read a text file of unknown origin; any problem is a one-sentence error."""
    if path.is_dir():
        raise UsageError(f"{path} is a folder; name a file in it.")
    if not path.is_file():
        raise UsageError(f"{path} does not exist.")
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text: {error.reason}.") from None


def read_json(text: str | bytes, where: str) -> Any:
    """Parse JSON of unknown origin; any problem is a one-sentence error.

    >>> read_json("[" * 100_000, "this")
    Traceback (most recent call last):
    switch_ema.bench.errors.UsageError: this is nested too deeply.
    """
    try:
        return json.loads(text)
    except (RecursionError, MemoryError):
        raise UsageError(f"{where} is nested too deeply.") from None
    except ValueError as error:  # includes numbers with thousands of digits
        raise UsageError(f"{where} is not JSON: {error}.") from None


_UNITS = {"s": 1, "min": 60, "h": 3600}


def read_duration(text: str, name: str) -> float:
    """Parse a time such as 90s, 30min or 1.5h into seconds.

    >>> [read_duration(text, "budget") for text in ("90s", "30min", "1.5h")]
    [90.0, 1800.0, 5400.0]
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|min|h)", text.strip())
    seconds = float(found[1]) * _UNITS[found[2]] if found else 0.0
    if not seconds > 0:
        raise UsageError(f"{name} must be a time such as 90s, 30min or 2h, got {text}.")
    return seconds
