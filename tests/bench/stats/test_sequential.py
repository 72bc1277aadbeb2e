"""Tests valid at every look: against integrals, exact sums, and each other."""

from math import comb, inf, sqrt

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import nct, norm, t

from switch_ema.bench.stats.paired import LEVEL, compare
from switch_ema.bench.stats.sequential import (
    anytime_p,
    anytime_sign_p,
    fewest_to_decide,
    look_after,
    nominal_level,
    pairs_to_decide,
)


@pytest.mark.parametrize(("n", "statistic"), [(12, 4.5), (16, 5.0), (64, 3.6)])
def test_p_is_the_inverse_of_the_mixture_of_noncentral_densities(n, statistic):
    # The definition: t given an effect, averaged over effects from N(0, 0.1).
    mixture, _ = quad(
        lambda effect: (
            nct.pdf(statistic, n - 1, effect * sqrt(n))
            * norm.pdf(effect, scale=sqrt(0.1))
        ),
        -3,
        3,
    )
    expected = t.pdf(statistic, n - 1) / mixture
    p = 2 * t.sf(statistic, n - 1)
    assert anytime_p(p, n) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("n", [5, 16, 64])
def test_the_likelihood_ratio_averages_to_one_without_an_effect(n):
    def weighted(statistic):
        # Uncapped: the formula of the module's docstring.
        growth = 1 + 0.1 * n
        ratio = (1 + statistic**2 / (n - 1)) / (1 + statistic**2 / (n - 1) / growth)
        value = growth**-0.5 * ratio ** (n / 2)
        p = 2 * t.sf(abs(statistic), n - 1)
        expected = min(1, 1 / value, p * 1e6)
        assert anytime_p(p, n) == pytest.approx(expected, rel=1e-6)
        return value * t.pdf(statistic, n - 1)

    assert quad(weighted, 0, 60)[0] * 2 == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("level", [0.03, 0.006])
@pytest.mark.parametrize("n", [16, 20, 64, 1_000])
def test_the_nominal_level_is_where_p_reaches_the_level(level, n):
    nominal = nominal_level(level, n)
    assert 0 < nominal < level
    assert anytime_p(nominal, n) == pytest.approx(level)
    assert anytime_p(0.99 * nominal, n) < level < anytime_p(1.01 * nominal, n)


def test_with_too_few_pairs_only_overwhelming_results_decide():
    for level in (0.03, 0.03 / 5, 0.03 / 20):
        fewest = fewest_to_decide(level)
        for n in (2, fewest - 1):  # but for a millionth of the level
            assert nominal_level(level, n) == pytest.approx(level * 1e-6)
            assert anytime_p(level * 1.01e-6, n) > level > anytime_p(level * 9e-7, n)
        assert nominal_level(level, fewest) > level * 1e-6


def test_looks_come_after_whole_rounds_from_the_first_that_can_decide():
    assert [look_after(0, m, 4, 0.03) for m in (1, 5, 50)] == [12, 16, 20]
    assert look_after(0, 1, 1, 0.03) == fewest_to_decide(0.03) == 12
    assert look_after(0, 5, 32, 0.03) == 32
    assert look_after(32, 5, 8, 0.03) == 40
    # Seeds that a run has already count.
    assert look_after(8, 1, 4, 0.03) == 12
    assert look_after(0, 0, 4, 0.03) == 12


def test_signs_cross_the_level_at_any_of_100_looks_as_rarely_as_promised():
    # Exact: the share of sequences of fair signs that have not crossed yet.
    going, crossed = np.array([1.0]), 0.0
    for n in range(1, 101):
        going = (np.append(going, 0) + np.append(0, going)) / 2
        over = np.array([anytime_sign_p(k, n - k) < 0.03 for k in range(n + 1)])
        crossed += going[over].sum()
        going[over] = 0
    assert 0.01 < crossed < 0.03


def test_the_sign_test_averages_to_one_and_ignores_the_direction():
    values = [1 / anytime_sign_p(k, 12 - k) * comb(12, k) / 2**12 for k in range(13)]
    # Values are capped at p = 1, which only adds.
    assert 1 <= sum(values) < 2
    assert anytime_sign_p(9, 1) == anytime_sign_p(1, 9)
    assert anytime_sign_p(0, 0) == pytest.approx(1)


@pytest.mark.parametrize("sequential", [False, True])
@pytest.mark.parametrize(
    ("mean", "effect"), [(0.5, 0.0), (0.1, 0.5), (-0.3, 0.2), (0.0, 1.0)]
)
def test_the_pairs_to_decide_are_the_first_that_do(mean, effect, sequential):
    found = pairs_to_decide(mean, 1.0, 0.03, effect, sequential=sequential)

    def decides(n):
        level = nominal_level(0.03, n) if sequential else 0.03
        half = t.isf(level / 2, n - 1) / sqrt(n)
        return mean - half > 0 or mean + half < 0 or abs(mean) + half <= effect

    assert found == next(n for n in range(3, 2_000) if decides(n))


def test_no_number_of_pairs_shows_that_nothing_is_exactly_zero():
    assert pairs_to_decide(0.0, 1.0, 0.03, 0.0, sequential=True) == inf


# Few and fixed; benchmarks/sequential.py has 10,000 of each kind, at 14 looks.
LOOKS = (12, 20, 28, 40)
KINDS = {
    "normal": lambda rng: rng.normal(size=LOOKS[-1]),
    "skewed": lambda rng: rng.exponential(size=LOOKS[-1]) - 1,
    "heavy-tailed": lambda rng: rng.standard_t(3, size=LOOKS[-1]),
    "tied": lambda rng: np.rint(rng.normal(size=LOOKS[-1])),
}


def judged(differences, look, *, sequential, smallest_effect=0.0):
    plain = np.random.default_rng(look).integers(0, 50, size=look)
    curves = {
        "plain": {seed: [float(v)] for seed, v in enumerate(plain)},
        "ema": {seed: [float(v)] for seed, v in enumerate(plain + differences[:look])},
    }
    return compare(
        curves,
        higher_is_better=True,
        sequential=sequential,
        smallest_effect=smallest_effect,
    )[1].verdict


@pytest.mark.parametrize("kind", KINDS)
def test_looking_after_every_round_keeps_the_rate_of_wrong_verdicts(kind):
    rng = np.random.default_rng(7)
    wrong = {True: 0, False: 0}
    for _ in range(120):
        differences = KINDS[kind](rng)
        for sequential in wrong:
            wrong[sequential] += any(
                judged(differences, look, sequential=sequential) != "undecided"
                for look in LOOKS
            )
    assert wrong[True] <= 4  # 3% of 120 are 3.6
    assert wrong[False] >= 6  # with the usual test it would be twice that at least


def test_no_difference_is_rarely_said_of_one_that_matters():
    rng = np.random.default_rng(3)
    said = {0.0: 0, 1.0: 0}
    for effect in said:
        for _ in range(60):
            differences = rng.normal(effect, size=LOOKS[-1])
            verdicts = [
                judged(differences, look, sequential=True, smallest_effect=1.0)
                for look in LOOKS
            ]
            said[effect] += "no difference" in verdicts
    assert said[0.0] >= 54 and said[1.0] <= 2


def test_the_interval_excludes_zero_if_and_only_if_p_decides():
    rng = np.random.default_rng(5)
    decided = 0
    for number in range(60):
        shifts = rng.normal(size=(3, 16)) + rng.uniform(0, 2, size=(3, 1))
        plain = rng.normal(size=16)
        curves = {"plain": {seed: [v] for seed, v in enumerate(plain)}} | {
            f"m{index}": {
                # Not paired in every other comparison.
                seed + 100 * (number % 2): [v]
                for seed, v in enumerate(plain + own)
            }
            for index, own in enumerate(shifts)
        }
        for result in compare(curves, higher_is_better=True, sequential=True)[1:]:
            d = result.difference
            assert (d.low > 0 or d.high < 0) == (d.p_holm < LEVEL)
            decided += d.p_holm < LEVEL
    assert 10 < decided < 170
