"""The t-test that allows for skew: worked numbers, and intervals that fit its p."""

import numpy as np
import pytest
from scipy.stats import t

from switch_ema.bench.stats.skewed import skew_against, skewed_interval, skewed_p


def test_hand_worked_p():
    # g = 1.5 * -1 and w = 0.5: h = 0.5 - 0.125 + 0.28125 / 27 - 1.5 / 96 = 0.36979167,
    # times 4 is 1.47916667, with 15 degrees of freedom.
    expected = 2 * t.sf(1.47916667, 15)
    assert skewed_p(0.5, 1.0, 16, -1.0) == pytest.approx(expected, abs=1e-8)
    assert skewed_p(-0.5, 1.0, 16, 1.0) == pytest.approx(expected, abs=1e-8)
    # Twice the scale changes nothing, and h beyond zero is no evidence.
    assert skewed_p(1.0, 2.0, 16, -1.0) == pytest.approx(expected, abs=1e-8)
    assert skewed_p(0.001, 1.0, 16, -4.0) == 1.0


def test_a_mean_far_from_zero_is_significant():
    # g = -1.5 and w = 2: the cubic is flat there, with h = 2/3 - 1.5 / 96, so only the
    # tangent at 1 + g w / 3 = 1/2 is left: h = (1/8 - 3/4 * 1/2 - 1) / -1.5 - 1.5 / 96.
    expected = 2 * t.sf((1.25 / 1.5 - 1.5 / 96) * 4, 15)
    assert skewed_p(2.0, 1.0, 16, -1.0) == pytest.approx(expected, abs=1e-8)
    assert expected < 0.006  # 0.02 by the cubic
    # On the tangent, two standard deviations more add as much of its slope, 1/4, to h.
    expected = 2 * t.sf((1.25 / 1.5 - 1.5 / 96 + 2 / 4) * 4, 15)
    assert skewed_p(4.0, 1.0, 16, -1.0) == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize("skew", [-3.0, -0.9, 0.9, 3.0])
@pytest.mark.parametrize("n", [12, 32])
def test_the_ends_of_the_interval_are_the_means_that_p_just_rejects(skew, n):
    low, high = skewed_interval(0.0, 1.0, n, skew, 0.03)
    assert low < 0 < high and (high > -low) == (skew > 0)
    for end in (low, high):
        assert skewed_p(-end, 1.0, n, skew) == pytest.approx(0.03)


def test_only_a_tail_on_the_other_side_that_the_sample_shows_counts():
    rng = np.random.default_rng(0)
    noticed = 0
    for _ in range(1_000):
        values = rng.normal(size=16)
        noticed += skew_against(values, values.mean(), values.std(ddof=1)) != 0
    assert 10 <= noticed <= 40  # 5% are beyond two standard errors, half on this side
    for n in (2, 3, 4):  # with so few, no sample is
        values = [1.0] * (n - 1) + [-0.5]
        mean, sd = np.mean(values), np.std(values, ddof=1)
        assert skew_against(values, mean, sd) == 0
    # 16 / 15 / 14 * (15 * 0.25**3 - 3.75**3) = -4
    assert skew_against([1.0] * 15 + [-3.0], 0.75, 1.0) == pytest.approx(-4)
