"""Where an average begins: after some steps or epochs, or a share of the run."""

import math
import re
from dataclasses import dataclass
from numbers import Real
from typing import Any, Union

from switch_ema.averaging.schedules.intervals import Epochs, Schedule, Steps
from switch_ema.averaging.schedules.progress import Position, read_span

StartLike = Union[float, str, Schedule]
"""A number of epochs, ``Steps(n)``, or text such as "5ep", "1000it", "10% of 90ep"."""

_SHARE = re.compile(r"(.*%)\s*of\s(.*)")
_EPOCHS = Epochs(1)


@dataclass(frozen=True)
class StartPoint:
    """A point of the training."""

    amount: float
    unit: str
    """"ep" for epochs, "it" for steps."""

    def __repr__(self) -> str:
        return f"'{self.amount:.12g}{self.unit}'"

    def is_reached(self, position: Position) -> bool:
        """Whether training has come this far."""
        if self.unit == "it":
            return position.steps >= self.amount
        if self.amount.is_integer():  # the length of this epoch is not known yet
            return position.epochs >= self.amount
        return _EPOCHS.progress(position) >= self.amount


def as_start(start: StartLike, name: str = "start") -> StartPoint | None:
    """Convert the argument ``start``; None if the average begins at once.

    >>> as_start(5), as_start("1000it"), as_start("10% of 90ep"), as_start(0)
    ('5ep', '1000it', '9ep', None)
    """
    number: Any = start
    unit = "ep"
    if isinstance(start, str):
        number, unit = _read(start, name)
    elif isinstance(start, Steps):
        number, unit = start.n, "it"
    elif isinstance(start, Epochs):
        number = start.interval
    is_number = isinstance(number, Real) and not isinstance(number, bool)
    if not (is_number and 0 <= number < math.inf):
        raise ValueError(
            f"{name} must be a number of epochs of at least 0, or text such as '5ep' "
            f"(epochs), '1000it' (steps) or '10% of 90ep', got {start!r}."
        )
    return StartPoint(float(number), unit) if number > 0 else None


def in_run(start: Any, length: str | None) -> Any:
    """Complete a share such as "10%" with the length of the run, where it is known.

    >>> in_run("10%", "90ep"), in_run("5ep", "90ep"), in_run(3, None)
    ('10% of 90ep', '5ep', 3)
    """
    is_share = isinstance(start, str) and start.strip().endswith("%")
    return f"{start} of {length}" if is_share and length is not None else start


def _read(text: str, name: str) -> tuple[float, str]:
    """Return a number of epochs or steps; -1 if the text is not understood."""
    share = _SHARE.fullmatch(text.strip())
    percent, unit = read_span(share[1] if share else text) or (-1.0, "")
    if unit == "%" and share is None:
        raise ValueError(
            f"{name}={text!r} needs the length of the run, which is not known here: "
            f"write '{text.strip()} of 90ep' or '{text.strip()} of 10000it'."
        )
    if unit in ("ep", "it") and share is None:
        return percent, unit
    length, of = (read_span(share[2]) if share else None) or (-1.0, "")
    if unit != "%" or not 0 <= percent < 100 or of not in ("ep", "it"):
        return -1.0, ""
    return length * percent / 100, of
