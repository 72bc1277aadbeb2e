"""The share of progress that survives a switch, and ``decay="auto"`` based on it."""

import math
from dataclasses import dataclass

from switch_ema._checks import check_positive, check_range
from switch_ema.averaging.schedules.decay import DecaySchedule
from switch_ema.averaging.schedules.intervals import Schedule

WINDOWS = 5.0
"""Windows ``1 / (1 - d)`` between two switches with ``decay="auto"``.

A switch then keeps 80% of a linear drift, which hardly slows training down."""


def surviving_share(decay: float, steps: float) -> float:
    """Return the share of a linear drift that survives a switch.

    ``f = 1 - d * (1 - d**n) / (n * (1 - d))``: the live weights move by the same amount
    in each of n steps, then the switch sets them back to the average.

    Args:
        decay: the constant decay ``d`` in [0, 1).
        steps: ``n``, the number of optimizer steps between two switches.

    >>> round(surviving_share(0.99, 500), 2), round(surviving_share(0.999, 48), 2)
    (0.8, 0.02)
    """
    decay = check_range("decay", decay, 0, 1)
    check_positive("steps", steps)
    return 1 - decay * (1 - math.pow(decay, steps)) / (steps * (1 - decay))


def decay_for_share(share: float, steps: float) -> float:
    """Return the decay with which a switch keeps a given share of a linear drift.

    Inverts :func:`surviving_share`, which decreases with the decay, by bisection.

    Args:
        share: ``f`` in (0, 1).
        steps: ``n``, the number of optimizer steps between two switches.

    >>> round(decay_for_share(surviving_share(0.99, 500), 500), 6)
    0.99
    """
    check_range("share", share, 0, 1)
    check_positive("share", share)
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        keeps_more = middle < 1 and surviving_share(middle, steps) > share
        low, high = (middle, high) if keeps_more else (low, middle)
    return low


@dataclass(frozen=True)
class SwitchAuto(DecaySchedule):
    """``d = 1 - 5 / n`` with n steps between two switches.

    Before the first switch, n is the number of steps so far: every switch keeps the
    same share, and the length of an epoch need not be known in advance.
    """

    schedule: Schedule
    """Decides when to switch."""

    def __repr__(self) -> str:
        """Return the text that stands for it."""
        return "'auto'"

    def at(self, n: int, steps_per_epoch: int | None) -> float:
        """Return the decay; 0 for the first five steps."""
        between = self.schedule.steps_between(steps_per_epoch)
        reached = n + 1 if between is None else min(between, n + 1)
        return max(1 - WINDOWS / reached, 0.0)

    def check(self, steps_per_epoch: int | None) -> None:
        """Reject an interval so short that the average would equal the live weights."""
        between = self.schedule.steps_between(steps_per_epoch)
        if between is not None and between <= WINDOWS:
            raise ValueError(
                f"decay='auto' needs more than {WINDOWS:g} steps between two switches, "
                f"got {between:g}: switch less often, or give the decay as a number."
            )
