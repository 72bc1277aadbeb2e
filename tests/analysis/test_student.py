"""Student's t without SciPy, compared with it."""

import math
import subprocess
import sys

import mpmath
import pytest
from scipy.stats import nct, t

from switch_ema.analysis.intervals import interval
from switch_ema.analysis.student import noncentrality, t_isf, t_sf

DEGREES = (1, 2, 3, 4, 7, 11, 31, 100, 999)


@pytest.mark.parametrize("df", DEGREES)
def test_tail_probabilities(df):
    for value in (0.0, 0.01, 0.3, 1.0, 1.7, 2.0, 3.5, 8.0, 40.0, 1e4, -0.5, -6.0):
        expected = float(t.sf(value, df))
        assert t_sf(value, df) == pytest.approx(expected, rel=1e-10, abs=1e-290)
    assert t_sf(math.inf, df) == 0 <= t_sf(1e300, df) < 1e-290


def test_tail_probabilities_at_high_precision():
    with mpmath.workdps(40):
        for df, value in ((1, 1e-9), (2, 0.7), (5, 12.0), (31, 9.0), (200, 3.0)):
            x, half = mpmath.mpf(df) / (df + mpmath.mpf(value) ** 2), mpmath.mpf("0.5")
            exact = mpmath.betainc(mpmath.mpf(df) / 2, half, 0, x, regularized=True) / 2
            assert t_sf(value, df) == pytest.approx(float(exact), rel=1e-12)


@pytest.mark.parametrize("df", DEGREES)
def test_quantiles(df):
    for p in (0.5, 0.49, 0.25, 0.1, 0.025, 0.015, 0.0015, 1e-5, 1e-9, 0.8, 0.999):
        expected = float(t.isf(p, df))
        assert t_isf(p, df) == pytest.approx(expected, rel=1e-10, abs=1e-12)


@pytest.mark.parametrize("df", DEGREES)
def test_power(df):
    for level in (0.03, 0.005, 0.0006):
        critical = float(t.isf(level / 2, df))
        mean = noncentrality(critical, df, 0.8)
        if df > 2:  # SciPy's own series loses digits for larger means
            assert nct.sf(critical, df, mean) == pytest.approx(0.8, abs=1e-10)
        with mpmath.workdps(30):
            exact = _power(critical, df, mean)
        assert exact == pytest.approx(0.8, abs=1e-11)


def _power(critical, df, mean):
    """The probability of (Z + mean) / S above the critical value, with S given."""
    scale = 2 * mpmath.power(mpmath.mpf(df) / 2, mpmath.mpf(df) / 2)
    scale /= mpmath.gamma(mpmath.mpf(df) / 2)

    def density(s):
        return scale * s ** (df - 1) * mpmath.exp(-df * s * s / 2)

    def integrand(s):
        return density(s) * mpmath.ncdf(mean - critical * s)

    middle, width = mean / critical, 1 / critical
    spread = 1 / mpmath.sqrt(2 * df)
    edges = {0, 1, 1 + 12 * spread, *(max(0, 1 - k * spread) for k in (3, 6, 12))}
    edges |= {1 + k * spread for k in (3, 6)}
    edges |= {max(0, middle + k * width) for k in (-12, -6, -3, 0, 3, 6, 12)}
    return float(mpmath.quad(integrand, sorted(map(mpmath.mpf, edges))))


def test_intervals_are_those_of_scipy():
    values = [0.3, 0.1, 0.9, 0.4, math.nan]
    found = interval(values)
    error = 0.34034296427770228 / 2  # the standard deviation of the four, over sqrt(4)
    half = error * float(t.isf(0.015, 3))
    assert found == pytest.approx((0.425, 0.425 - half, 0.425 + half, 4))


def test_statistics_need_neither_numpy_nor_scipy():
    code = """
import sys
sys.modules |= dict.fromkeys(("numpy", "scipy", "torch"))
import switch_ema.bench.stats.paired, switch_ema.analysis.intervals
"""
    subprocess.run([sys.executable, "-c", code], check=True)
