"""Converts a decay given as a number, schedule, callable or string to a schedule."""

import re
from collections.abc import Callable
from typing import Any, Union

from switch_ema.averaging.schedules import decay as schedules
from switch_ema.averaging.schedules import windows
from switch_ema.averaging.schedules.decay import Custom, DecaySchedule, count_warmup

DecayLike = Union[float, str, DecaySchedule, Callable[[int], float]]

AUTO = "auto"

SPELLED: dict[str, Callable[..., DecaySchedule]] = {
    function.__name__: function
    for function in (
        schedules.constant,
        schedules.count_warmup,
        schedules.power_warmup,
        schedules.linear_warmup,
        schedules.exponential_warmup,
        schedules.constant_warmup,
        schedules.cosine,
        windows.half_life,
        windows.fraction,
        windows.power,
    )
}
"""Schedules that a string can call by name, such as ``"half_life(500it)"``."""


def as_schedule(decay: DecayLike, auto: DecaySchedule | None = None) -> DecaySchedule:
    """Convert a number, schedule, callable of the step or string to a schedule.

    A number gets a warm-up (:func:`count_warmup`): a constant decay would hold the
    average near the initial weights, and an early switch would undo the training.

    Args:
        decay: as given by the user.
        auto: the method's schedule for ``"auto"``; None if it has none.

    >>> as_schedule("fraction(0.05)") == windows.fraction(0.05)
    True
    >>> as_schedule("linear_warmup(0.99, steps=100)")(100)
    0.99
    """
    if isinstance(decay, DecaySchedule):
        return decay
    if callable(decay):
        return Custom(decay)
    if isinstance(decay, str):
        return _read(decay, auto)
    return count_warmup(decay)


def _read(text: str, auto: DecaySchedule | None) -> DecaySchedule:
    if text == AUTO:
        if auto is None:
            raise ValueError(
                "decay='auto' is for EMA and methods based on it; give a number here."
            )
        return auto
    call = re.fullmatch(r"\s*(\w+)\((.*)\)\s*", text)
    if call is None or call[1] not in SPELLED:
        allowed = f"'auto' or one of {', '.join(SPELLED)} with its arguments"
        raise ValueError(
            f"decay must be in [0, 1), got {text!r}; a string must be {allowed}, such "
            "as 'fraction(0.05)'."
        )
    values: list[Any] = []
    named: dict[str, Any] = {}
    for part in filter(None, map(str.strip, call[2].split(","))):
        key, equals, value = part.rpartition("=")
        if equals:
            named[key.strip()] = _value(value)
        else:
            values.append(_value(value))
    try:
        return SPELLED[call[1]](*values, **named)
    except TypeError as error:
        raise ValueError(f"decay {text!r}: {error}.") from None


def _value(text: str) -> Any:
    """Parse an int or a float; otherwise return the text without quotes."""
    text = text.strip().strip("'\"")
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
