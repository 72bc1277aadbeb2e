"""A t-test that allows for skew, by Hall's transformation.

Where differences have a long tail on one side, few seeds hold little of it, and
Student's t finds a mean on the other side too often. Hall's transformation of the
studentised mean removes the skew::

    h(w) = w + g w^2 / 3 + g^2 w^3 / 27 + g / (6 n),    w = mean / sd

with the skewness g. It grows with w, so intervals come from its inverse.

Reference: P. Hall, On the removal of skewness by transformation. Journal of the Royal
Statistical Society B 54 (1992), pages 221 to 228.
"""

from collections.abc import Sequence
from math import copysign, sqrt

import numpy as np
from scipy.stats import t  # type: ignore[import-untyped]

ALLOWED_FROM = 12
"""Pairs of seeds from which the test allows for skew; fewer tell too little about it,
and the power that it costs is lost for nothing."""
_NOTICED = 2.0
"""Standard errors that the skewness of a sample has to exceed: 5% of normal ones do."""
_UNSEEN = 1.5
"""True skewness by that of a sample, for 16 exponential differences."""


def skew_against(values: Sequence[float], mean: float, sd: float) -> float:
    """Return the skewness of values with a long tail on the other side of their mean.

    It is 0 where the sample does not show it, as always below five values, and where
    the tail is on the side of the mean: there Student's t errs on the safe side.

    >>> values = [0.1, 0.2, 0.2, 0.3, 0.3, 0.4, 0.4, -1.5]
    >>> round(skew_against(values, 0.05, 0.634), 2)
    -2.69
    >>> skew_against([-value for value in values], 0.05, 0.634)
    0.0
    """
    n = len(values)
    if n < 3:
        return 0.0
    skewness = n / (n - 1) / (n - 2) * sum(((v - mean) / sd) ** 3 for v in values)
    error = sqrt(6 * n * (n - 1) / ((n - 2) * (n + 1) * (n + 3)))
    is_noticed = abs(skewness) > _NOTICED * error
    return skewness if is_noticed and skewness * mean < 0 else 0.0


def skewed_p(mean: float, sd: float, n: int, skew: float) -> float:
    """Return the two-sided p of a mean; 1 where h is on the other side of zero."""
    w, g = mean / sd, _UNSEEN * skew
    h = w + g * w**2 / 3 + g**2 * w**3 / 27 + g / (6 * n)
    return min(1.0, float(2 * t.sf(copysign(h, h * mean) * sqrt(n), n - 1)))


def skewed_interval(
    mean: float, sd: float, n: int, skew: float, level: float
) -> tuple[float, float]:
    """Return the means that :func:`skewed_p` does not reject at the level."""
    critical, g = float(t.isf(level / 2, n - 1)) / sqrt(n), _UNSEEN * skew

    def end(h: float) -> float:
        w = 3 / g * (float(np.cbrt(1 + g * (h - g / (6 * n)))) - 1)
        return mean - sd * w

    return end(critical), end(-critical)
