"""How much of the progress survives a switch, and the decay that follows from it."""

import math
from dataclasses import dataclass

from switch_ema._checks import check_positive, check_range
from switch_ema.averaging.schedules.decay import DecaySchedule
from switch_ema.averaging.schedules.intervals import Schedule

WINDOWS = 5.0
"""How many windows ``1 / (1 - d)`` lie between two switches under ``decay="auto"``.

Then 80% of a straight drift survive a switch, which hardly slows a training down."""


def surviving_share(decay: float, steps: float) -> float:
    """Return the share of a straight drift that survives a switch after so many steps.

    ``f = 1 - d * (1 - d**n) / (n * (1 - d))``: live weights that moved by the same
    amount at each of n steps go back to where the average is.

    Args:
        decay: the constant decay ``d`` in [0, 1).
        steps: ``n``, the optimizer steps between two switches.

    >>> round(surviving_share(0.99, 500), 2), round(surviving_share(0.999, 48), 2)
    (0.8, 0.02)
    """
    decay = check_range("decay", decay, 0, 1)
    check_positive("steps", steps)
    return 1 - decay * (1 - math.pow(decay, steps)) / (steps * (1 - decay))


def decay_for_share(share: float, steps: float) -> float:
    """Return the decay of which a switch after so many steps keeps a share.

    The inverse of :func:`surviving_share`, which falls as the decay grows.

    Args:
        share: ``f`` in (0, 1).
        steps: ``n``, the optimizer steps between two switches.

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

    Until then the steps so far stand for n, so that a switch keeps the same share from
    the first one on and nobody has to know the length of an epoch.
    """

    schedule: Schedule
    """When the switches are."""

    def at(self, n: int, steps_per_epoch: int | None) -> float:
        """Return the decay; 0 during the first steps."""
        between = self.schedule.steps_between(steps_per_epoch)
        reached = n + 1 if between is None else min(between, n + 1)
        return max(1 - WINDOWS / reached, 0.0)

    def check(self, steps_per_epoch: int | None) -> None:
        """Refuse an interval so short that the average would be the live weights."""
        between = self.schedule.steps_between(steps_per_epoch)
        if between is not None and between <= WINDOWS:
            raise ValueError(
                f"decay='auto' needs more than {WINDOWS:g} steps between two switches, "
                f"got {between:g}: switch less often, or give the decay as a number."
            )
