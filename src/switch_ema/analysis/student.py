"""Student's t distribution in plain Python, so that a verdict needs no SciPy.

Probabilities are accurate to about 12 digits, also far out in the tail, for up to
thousands of degrees of freedom.
"""

from math import erfc, exp, expm1, lgamma, log, log1p, pi, sqrt
from statistics import NormalDist

_TINY = 1e-300
_NEGLIGIBLE = 40.0
"""Integrands below exp(-40) of their maximum are left out."""


def t_sf(t: float, df: float) -> float:
    """Return the probability of a value above t.

    >>> round(t_sf(2.0, 1), 6), round(t_sf(-2.0, 1), 6)
    (0.147584, 0.852416)
    """
    if t < 0:
        return 1 - t_sf(-t, df)
    ratio = t * t / df  # not t**2, which raises an error if it overflows
    a = df / 2
    # x**a * (1 - x)**(1 / 2) / B(a, 1 / 2), where x = 1 / (1 + ratio)
    log_front = lgamma(a + 0.5) - lgamma(a) - 0.5 * log(pi) - a * log1p(ratio)
    front = exp(log_front) * sqrt(1 / (1 + 1 / ratio) if ratio else 0.0)
    x = 1 / (1 + ratio)
    if x < (a + 1) / (a + 2.5):
        return 0.5 * front * _beta_fraction(a, 0.5, x) / a
    return 0.5 - front * _beta_fraction(0.5, a, ratio / (1 + ratio))


def t_isf(p: float, df: float) -> float:
    """Return the t with ``t_sf(t, df) == p``, for p in (0, 1).

    >>> round(t_isf(0.025, 10), 6)
    2.228139
    """
    if p > 0.5:
        return -t_isf(1 - p, df)
    # Newton's method rises towards the solution from the left, where the normal
    # quantile is: the tail probability is convex, and its tails are heavier.
    t = -NormalDist().inv_cdf(p)
    scale = exp(lgamma((df + 1) / 2) - lgamma(df / 2)) / sqrt(pi * df)
    while True:
        density = scale * exp(-(df + 1) / 2 * log1p(t * t / df))
        further = t + (t_sf(t, df) - p) / density
        if further <= t * (1 + 1e-15):
            return t
        t = further


def noncentrality(critical: float, df: float, power: float) -> float:
    """Return the true mean, in standard errors, that a t-test finds with a power.

    Args:
        critical: the test finds a mean if its t is above this.
        df: degrees of freedom.
        power: probability of finding it, at least 0.7.
    """
    mean = critical
    while True:  # Newton's method, from the left: the power is concave from here on
        found, slope = _noncentral_sf(critical, df, mean)
        further = mean + (power - found) / slope
        if further <= mean * (1 + 1e-13):
            return mean
        mean = further


def _noncentral_sf(t: float, df: float, mean: float) -> tuple[float, float]:
    """Return the probability of (Z + mean) / S above t, and its derivative by mean.

    Here Z is normal and S = sqrt(chi2 / df). The integral over log S of an entire
    function that falls off on both sides: the trapezoidal rule is then exact but for
    exp(-40) at this step size.
    """
    step = min(0.1, 0.7 / sqrt(mean * mean + 2 * df))
    peak = log(2) + df / 2 * (log(df / 2) - 1) - lgamma(df / 2)
    found = slope = 0.0
    for direction in (1, -1):
        k = 0 if direction == 1 else 1
        while True:
            u = direction * k * step
            below = df * (expm1(2 * u) / 2 - u)
            if below > _NEGLIGIBLE:
                break
            weight = exp(peak - below) * step
            z = mean - t * exp(u)
            found += weight * erfc(-z / sqrt(2)) / 2
            slope += weight * exp(-z * z / 2) / sqrt(2 * pi)
            k += 1
    return found, slope


def _beta_fraction(a: float, b: float, x: float) -> float:
    """Evaluate the continued fraction of the incomplete beta function (Lentz).

    It converges fast for x below (a + 1) / (a + b + 2).
    """
    c, d = 1.0, 1 / _nonzero(1 - (a + b) * x / (a + 1))
    value, m = d, 0
    while True:
        m += 1
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for numerator in (even, odd):
            d = 1 / _nonzero(1 + numerator * d)
            c = _nonzero(1 + numerator / c)
            value *= c * d
        if abs(c * d - 1) < 1e-16:
            return value


def _nonzero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
