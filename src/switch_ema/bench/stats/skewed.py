"""A t-test adjusted for skew, by Hall's transformation.

If differences have a long tail on one side, few seeds sample it, and Student's t finds
a mean on the other side too often. Hall's transformation of the studentised mean
removes the skew::

    h(w) = w + g w^2 / 3 + g^2 w^3 / 27 + g / (6 n),    w = mean / sd

with the skewness g. It increases with w, so intervals come from its inverse.

The cubic holds for small g w and is flat at w = -3 / g, where a larger mean would
hardly be more significant. From w = -1.5 / g on, h continues along its tangent.

Reference: P. Hall, On the removal of skewness by transformation. Journal of the Royal
Statistical Society B 54 (1992), pages 221 to 228.
"""

from collections.abc import Sequence
from math import copysign, sqrt

from switch_ema.analysis.student import t_isf, t_sf

ALLOWED_FROM = 12
"""Minimum pairs for the adjustment; fewer estimate the skew too poorly to be worth the
loss of power."""
_NOTICED = 2.0
"""Threshold for a sample's skewness, in standard errors: 5% of normal samples pass."""
_UNSEEN = 1.5
"""Ratio of true to sample skewness, for 16 exponential differences."""
_TANGENT = 0.5
"""h follows its tangent where 1 + g w / 3, the cube root below, is smaller."""


def skew_against(values: Sequence[float], mean: float, sd: float) -> float:
    """Return the skewness of values with a long tail opposite in sign to their mean.

    0 if the sample shows no skew, always below five values, and if the tail is on the
    side of the mean, where Student's t is conservative.

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
    """Return the two-sided p of a mean; 1 if h has the opposite sign."""
    w, g = mean / sd, _UNSEEN * skew
    h = (_cubed(1 + g * w / 3) - 1) / g + g / (6 * n)
    return min(1.0, 2 * t_sf(copysign(h, h * mean) * sqrt(n), n - 1))


def skewed_interval(
    mean: float, sd: float, n: int, skew: float, level: float
) -> tuple[float, float]:
    """Return the interval of means that :func:`skewed_p` does not reject."""
    critical, g = t_isf(level / 2, n - 1) / sqrt(n), _UNSEEN * skew

    def end(h: float) -> float:
        root = _cube_root(1 + g * (h - g / (6 * n)))
        return mean - sd * 3 / g * (root - 1)

    return end(critical), end(-critical)


def _cubed(root: float) -> float:
    """Return the cube; below ``_TANGENT``, its tangent there."""
    if root > _TANGENT:
        return root**3
    return _TANGENT**3 + 3 * _TANGENT**2 * (root - _TANGENT)


def _cube_root(cube: float) -> float:
    """Invert :func:`_cubed`."""
    if cube > _TANGENT**3:
        return float(cube ** (1 / 3))
    return _TANGENT + (cube - _TANGENT**3) / (3 * _TANGENT**2)
