"""Confidence intervals of a mean over seeds, by Student's t."""

from collections.abc import Iterable
from math import isfinite, nan, sqrt
from statistics import fmean, stdev
from typing import NamedTuple

from switch_ema.analysis.student import t_isf

# At 3%, 97% of plain-vs-plain comparisons find no help and no harm, and with n = 8 and
# five methods the power for a difference of two standard deviations (of the paired
# differences) is still 90%.
LEVEL = 0.03
"""One minus the confidence of all intervals, and the level of the verdicts."""
CONFIDENCE = "97%"
"""The confidence as text."""


class Interval(NamedTuple):
    """A mean over seeds with its confidence interval.

    Entries that need more values are NaN.
    """

    mean: float
    low: float
    high: float
    n: int
    """Seeds that have a value."""


def interval(values: Iterable[float], level: float = LEVEL) -> Interval:
    """Average over seeds with a finite value; ``n`` counts them.

    Args:
        values: one value per seed.
        level: one minus the confidence, so 0.03 is the 97% interval.

    >>> tuple(round(number, 2) for number in interval([1.0, 2.0, 3.0, nan]))
    (2.0, -1.26, 5.26, 3)
    """
    finite = [number for value in values if isfinite(number := float(value))]
    n = len(finite)
    mean = fmean(finite) if n else nan
    half = half_width(stdev(finite), n, level) if n > 1 else nan
    return Interval(mean, mean - half, mean + half, n)


def half_width(sd: float, n: int, level: float = LEVEL) -> float:
    """Return half the interval's width: ``t(1 - level / 2, n - 1) * sd / sqrt(n)``.

    Args:
        sd: the standard deviation of the values, with n - 1 in the denominator.
        n: number of values, at least 2.
        level: one minus the confidence, in (0, 1).
    """
    return sd / sqrt(n) * t_isf(level / 2, n - 1)
