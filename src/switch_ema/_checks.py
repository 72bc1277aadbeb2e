"""Argument checks and their messages: the argument, the value and the valid range."""

import math
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any


def check_range(name: str, value: Any, low: float, high: float) -> float:
    """Return ``value`` as a float if it lies in ``[low, high)``."""
    if _is_real(value) and low <= value < high:
        return float(value)
    raise ValueError(f"{name} must be in [{low}, {high}), got {value!r}.")


def check_share(name: str, value: Any) -> float:
    """Return ``value`` as a float if it lies in ``[0, 1]``."""
    if _is_real(value) and 0 <= value <= 1:
        return float(value)
    raise ValueError(f"{name} must be in [0, 1], got {value!r}.")


def check_positive(name: str, value: Any) -> float:
    """Return ``value`` as a float if it is positive and finite."""
    if _is_real(value) and 0 < value < math.inf:
        return float(value)
    raise ValueError(f"{name} must be a number above 0, got {value!r}.")


def check_count(name: str, value: Any, least: int = 1) -> int:
    """Return ``value`` if it is a whole number of at least ``least``."""
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if whole and value >= least:
        return int(value)
    raise ValueError(
        f"{name} must be a whole number of at least {least}, got {value!r}."
    )


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> str:
    """Return ``value`` if it is one of ``choices``."""
    if value in choices:
        return value
    allowed = " or ".join(repr(choice) for choice in choices)
    raise ValueError(f"{name} must be {allowed}, got {value!r}.")


def listed(names: Sequence[str], separator: str = ", ", most: int = 5) -> str:
    """Return the first names and the number of others, for a message.

    >>> listed(["a", "b", "c"], most=2)
    'a, b and 1 more'
    """
    shown = separator.join(map(printable, names[:most]))
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def printable(text: str) -> str:
    r"""Escape control characters, which could move a terminal's cursor.

    >>> printable("loss is nan\x1b[2J")
    'loss is nan\\x1b[2J'
    """
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _is_real(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
