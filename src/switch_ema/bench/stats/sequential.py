"""Tests and intervals that stay valid although one looks after every round of seeds.

A fixed-n test at 3% that is repeated after every round is wrong far more often than 3%.
These tests bound the chance of being wrong at *any* look, whatever the number of looks,
the size of the rounds and the reason to stop.

The statistic is the same as with a fixed number of seeds; only its level changes. With
the standardised effect drawn from N(0, g), Student's t of n differences has the
likelihood ratio::

    (1 + n g)^(-1/2) * ((1 + t^2 / (n - 1)) / (1 + t^2 / ((n - 1) (1 + n g))))^(n / 2)

For normal differences around zero, of any variance, it is a martingale that starts at
1, so it exceeds 1 / level at any look with a probability of at most ``level`` (Ville's
inequality), and its inverse is a p-value that is valid at every look. The small g makes
it strict with few seeds, where skewed differences mislead Student's t the most:
``benchmarks/sequential.py`` measures the rates.

With very few seeds the ratio cannot exceed 1 / level. So that intervals are finite, a
p-value below a millionth of the level decides as well, which adds a millionth of the
level to the rate for each look.

Near ties are judged by the signs alone, with the mixture of Krichevsky and Trofimov.

References: T. L. Lai, On confidence sequences. Annals of Statistics 4 (1976), pages 265
to 280. H. Wang, A. Ramdas, Anytime-valid t-tests and confidence sequences for Gaussian
means with unknown variance. arXiv 2310.03722 (2023).
"""

from functools import lru_cache
from math import exp, inf, lgamma, log, log1p, pi, sqrt

from switch_ema.analysis.intervals import half_width
from switch_ema.analysis.student import t_isf, t_sf

_SPREAD = 0.1
"""Variance g of the standardised effect in the mixture.

The largest of the values tried that keeps the stated rate for strongly skewed
differences; larger ones decide large effects with fewer seeds.
"""
_FLOOR = 1e-6
"""Smallest nominal level, as a share of the level."""
_ZERO = 1e-100
_MOST = 1_000_000
"""Seeds beyond which no number is stated."""


def anytime_p(p: float, n: int) -> float:
    """Return the p-value valid at every look, from that of a t-test with n pairs.

    >>> round(anytime_p(0.0001, 16), 3), anytime_p(0.5, 16)
    (0.028, 1.0)
    """
    df, growth = n - 1, 1 + n * _SPREAD
    ratio = log(growth)  # its limit, if p is too small to be told from zero
    if p > _ZERO:
        share = t_isf(p / 2, df) ** 2 / df
        ratio = log1p(share) - log1p(share / growth)
    return min(1.0, p / _FLOOR, exp(log(growth) / 2 - n / 2 * ratio))


@lru_cache
def nominal_level(level: float, n: int) -> float:
    """Return the level of a t-test with n pairs that is valid at every look.

    ``anytime_p(p, n) < level`` if and only if p is below it.

    >>> round(nominal_level(0.03, 8), 9), round(nominal_level(0.03, 32), 4)
    (3e-08, 0.0009)
    """
    df, growth = n - 1, 1 + n * _SPREAD
    ratio = (sqrt(growth) / level) ** (2 / n)
    if ratio >= growth:
        return level * _FLOOR
    squared = df * (ratio - 1) / (1 - ratio / growth)
    return max(level * _FLOOR, 2 * t_sf(sqrt(squared), df))


def anytime_sign_p(above: int, below: int) -> float:
    """Return the p-value valid at every look of a sign test, two-sided.

    >>> round(anytime_sign_p(8, 0), 3), anytime_sign_p(5, 3)
    (0.02, 1.0)
    """
    n = above + below
    ratio = n * log(2) + lgamma(above + 0.5) + lgamma(below + 0.5)
    return min(1.0, exp(lgamma(n + 1) + log(pi) - ratio))


def fewest_to_decide(level: float) -> int:
    """Return the smallest number of pairs with which a large effect is decided."""
    n = 2
    while nominal_level(level, n) <= level * _FLOOR:
        n += 1
    return n


def look_after(seeds: int, comparisons: int, step: int, level: float) -> int:
    """Return the number of seeds of the next look.

    The first look has at least the seeds with which large effects are decided, in whole
    rounds.

    Args:
        seeds: seeds so far; 0 before the first look.
        comparisons: number of methods that are compared with the baseline.
        step: seeds of a round.
        level: corrected over the comparisons by this function.

    >>> [look_after(seeds, 1, 4, 0.03) for seeds in (0, 12, 16)]
    [12, 16, 20]
    """
    first = fewest_to_decide(level / max(1, comparisons))
    return max(seeds + step, -(-first // step) * step)


def pairs_to_decide(
    mean: float, sd: float, level: float, smallest_effect: float, *, sequential: bool
) -> float:
    """Return the pairs that decide if mean and standard deviation stay as they are.

    A decision is an interval that excludes zero or lies within the smallest effect.

    Args:
        mean: mean difference.
        sd: standard deviation of the differences.
        level: level of the interval, corrected over the methods.
        smallest_effect: smallest difference that matters.
        sequential: whether intervals are valid at every look.

    Returns:
        The number; infinity if it is above a million.
    """

    def decides(n: int) -> bool:
        half = half_width(sd, n, nominal_level(level, n) if sequential else level)
        return abs(mean) > half or abs(mean) + half <= smallest_effect

    low, high = 2, 4
    while not decides(high):
        low, high = high, 2 * high
        if high > _MOST:
            return inf
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if decides(middle) else (middle, high)
    return high
