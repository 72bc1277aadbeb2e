"""Decay schedules: the weight of the old shadow at the n-th optimizer step.

``shadow = d(n) * shadow + (1 - d(n)) * live``, with ``n = 0`` at the first step.
Schedules are frozen dataclasses; the functions below are the public way to create them,
and a schedule's text is the call that creates it.
:mod:`.windows` has those defined by a time span, and :mod:`.spelling` converts numbers
and strings.
"""

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from switch_ema._checks import check_positive, check_range, check_share

SMALLEST_WEIGHT = 8e-5
"""Updates with a smaller weight of the live tensors are merged into larger ones."""

MERGED_WEIGHT = 2**-11
"""Lower bound of the weight of a merged update; the upper bound is twice this."""


def merged_weight(weight: float, count: int) -> float:
    """Return the weight of the live tensors in an update; 0 if merged into a later one.

    In long runs with wide windows, an update ``weight * (live - shadow)`` is below half
    a unit in the last place of a float32 shadow, so rounding discards it and the
    average stalls. Therefore m updates, a power of two, are merged into one of weight
    ``1 - (1 - weight) ** m``. Which ones depends on the count alone, so resuming is
    exact; the average lags by less than a thousandth of its window.

    Args:
        weight: weight of the live tensors in one update, ``1 - decay``.
        count: number of updates so far, including this one.

    >>> merged_weight(0.001, 7), merged_weight(1e-5, 7)
    (0.001, 0.0)
    >>> round(merged_weight(1e-5, 64), 6)
    0.00064
    """
    if weight >= SMALLEST_WEIGHT or weight <= 0:
        return weight
    updates = 2 ** math.ceil(math.log2(MERGED_WEIGHT / weight))
    return 0.0 if count % updates else 1 - (1 - weight) ** updates


class DecaySchedule(ABC):
    """Computes the decay from the step and, once known, the length of an epoch."""

    @abstractmethod
    def at(self, n: int, steps_per_epoch: int | None) -> float:
        """Return the decay of step ``n`` (0 is the first)."""

    def __call__(self, n: int, steps_per_epoch: int | None = None) -> float:
        """Return the decay of step ``n``; raise ValueError if it is not in [0, 1].

        A decay of 1, such as at the end of a schedule, leaves the shadow unchanged.
        """
        decay = self.at(n, steps_per_epoch)
        if type(decay) is float and 0 <= decay <= 1:
            return decay
        return check_share(f"decay at step {n}", decay)


def constant(decay: float) -> DecaySchedule:
    """Use the same decay at every step, without a warm-up.

    Args:
        decay: weight of the old average, in [0, 1).

    >>> constant(0.99)(0)
    0.99
    """
    return _Constant(_final(decay))


def count_warmup(decay: float = 0.999) -> DecaySchedule:
    """Grow with the step: ``min(decay, (1 + n) / (10 + n))``.

    A plain number given as a decay means this schedule.
    During the warm-up the shadow spans about the last tenth of the steps so far, so it
    soon forgets the initial weights.

    Args:
        decay: upper bound, in [0, 1).

    >>> count_warmup(0.999)(0), count_warmup(0.999)(10_000)
    (0.1, 0.999)
    """
    return _CountWarmup(_final(decay))


def power_warmup(
    decay: float = 0.9999, *, power: float = 2 / 3, inv_gamma: float = 1.0
) -> DecaySchedule:
    """Grow by a power: ``min(decay, 1 - (1 + n / inv_gamma) ** -power)``.

    Args:
        decay: upper bound, in [0, 1).
        power: growth rate, above 0.
        inv_gamma: time scale of the growth in steps, above 0.

    >>> round(power_warmup(0.9999)(999), 6)
    0.99
    """
    check_positive("power", power)
    check_positive("inv_gamma", inv_gamma)
    return _PowerWarmup(_final(decay), power, inv_gamma)


def linear_warmup(decay: float, *, steps: int, ratio: float = 0.9) -> DecaySchedule:
    """Rise linearly from ``ratio * decay`` at step 0 to ``decay`` at step ``steps``.

    Args:
        decay: final decay, in [0, 1).
        steps: length of the warm-up.
        ratio: initial decay as a fraction of the final one, in (0, 1].

    >>> round(linear_warmup(0.99, steps=100, ratio=0.5)(50), 6)
    0.7425
    """
    return _RatioWarmup(_final(decay), *_warmup(steps, ratio), "linear")


def exponential_warmup(
    decay: float, *, steps: int, ratio: float = 0.9
) -> DecaySchedule:
    """Rise geometrically: ``decay * ratio ** (1 - n / steps)``, then ``decay``.

    Args:
        decay: final decay, in [0, 1).
        steps: length of the warm-up.
        ratio: initial decay as a fraction of the final one, in (0, 1].
    """
    return _RatioWarmup(_final(decay), *_warmup(steps, ratio), "exponential")


def constant_warmup(decay: float, *, steps: int, ratio: float = 0.9) -> DecaySchedule:
    """Stay at ``ratio * decay`` up to step ``steps``, then use ``decay``.

    Args:
        decay: final decay, in [0, 1).
        steps: length of the warm-up.
        ratio: initial decay as a fraction of the final one, in (0, 1].
    """
    return _RatioWarmup(_final(decay), *_warmup(steps, ratio), "constant")


def cosine(decay: float, *, steps: int, final: float = 1.0) -> DecaySchedule:
    """Go from ``decay`` to ``final`` along a half cosine, as for momentum teachers.

    ``final - (final - decay) * (1 + cos(pi * n / steps)) / 2``, then ``final``. With
    ``final=1`` the shadow stops changing at the end.

    Args:
        decay: initial decay, in [0, 1).
        steps: number of steps until the decay is ``final``.
        final: final decay, in [0, 1].
    """
    check_positive("steps", steps)
    if not 0 <= final <= 1:
        raise ValueError(f"final must be in [0, 1], got {final}.")
    return _Cosine(_final(decay), steps, final)


def _final(decay: float) -> float:
    decay = check_range("decay", decay, 0, 1)
    if decay < 0.5:
        advice = f"Did you mean {1 - decay:g}?" if decay > 0 else "0 averages nothing."
        warnings.warn(
            f"decay={decay} keeps less than half of the old shadow at every step; "
            "decay weights the old shadow, so the usual values are 0.9 to 0.9999. "
            f"{advice}",
            stacklevel=3,
        )
    return decay


def _warmup(steps: int, ratio: float) -> tuple[int, float]:
    check_positive("warm-up steps", steps)
    if not 0 < ratio <= 1:
        raise ValueError(f"warm-up ratio must be in (0, 1], got {ratio}.")
    return steps, ratio


@dataclass(frozen=True)
class _Constant(DecaySchedule):
    decay: float

    def __repr__(self) -> str:
        return f"constant({self.decay:.12g})"

    def at(self, n: int, steps_per_epoch: int | None) -> float:
        return self.decay


@dataclass(frozen=True)
class _CountWarmup(DecaySchedule):
    decay: float

    def __repr__(self) -> str:
        return f"count_warmup({self.decay:.12g})"

    def at(self, n: int, steps_per_epoch: int | None) -> float:
        return min(self.decay, (1 + n) / (10 + n))


@dataclass(frozen=True)
class _PowerWarmup(DecaySchedule):
    decay: float
    power: float
    inv_gamma: float

    def __repr__(self) -> str:
        values = f"power={self.power:.12g}, inv_gamma={self.inv_gamma:.12g}"
        return f"power_warmup({self.decay:.12g}, {values})"

    def at(self, n: int, steps_per_epoch: int | None) -> float:
        return min(self.decay, 1 - math.pow(1 + n / self.inv_gamma, -self.power))


@dataclass(frozen=True)
class _RatioWarmup(DecaySchedule):
    """The three warm-ups of the paper's code, by iteration."""

    decay: float
    steps: int
    ratio: float
    shape: str

    def __repr__(self) -> str:
        values = f"steps={self.steps:.12g}, ratio={self.ratio:.12g}"
        return f"{self.shape}_warmup({self.decay:.12g}, {values})"

    def at(self, n: int, steps_per_epoch: int | None) -> float:
        if n > self.steps:
            return self.decay
        remaining = 1 - n / self.steps
        if self.shape == "linear":
            return self.decay * (1 - remaining * (1 - self.ratio))
        if self.shape == "exponential":
            return self.decay * math.pow(self.ratio, remaining)
        return self.decay * self.ratio


@dataclass(frozen=True)
class _Cosine(DecaySchedule):
    decay: float
    steps: int
    final: float

    def __repr__(self) -> str:
        values = f"steps={self.steps:.12g}, final={self.final:.12g}"
        return f"cosine({self.decay:.12g}, {values})"

    def at(self, n: int, steps_per_epoch: int | None) -> float:
        share = (1 + math.cos(math.pi * min(n / self.steps, 1))) / 2
        return self.final - (self.final - self.decay) * share


@dataclass(frozen=True)
class Custom(DecaySchedule):
    """A user's function of the step."""

    function: Callable[[int], float]

    def __repr__(self) -> str:
        """Return the function's name."""
        return getattr(self.function, "__name__", repr(self.function))

    def at(self, n: int, steps_per_epoch: int | None) -> float:
        """Call the function."""
        return self.function(n)
