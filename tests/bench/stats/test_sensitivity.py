"""What verdicts hang on: single seeds, and the number of seeds."""

import math

import pytest

from switch_ema.bench.stats.paired import LEVEL, compare
from switch_ema.bench.stats.sensitivity import seeds_to_decide, without_one_seed
from tests.bench.stats.test_paired import ends

PLAIN = ends(90.0, 91.0, 92.0, 93.0, 94.0)


def judged(*gains: float, smallest: float = 0.5):
    method = {seed: [run[-1] + gains[seed]] for seed, run in PLAIN.items()}
    curves = {"plain": PLAIN, "ema": method}
    results = compare(curves, higher_is_better=True, smallest_effect=smallest)
    return curves, results


def test_a_verdict_that_hangs_on_no_seed() -> None:
    curves, results = judged(2.0, 2.1, 1.9, 2.2, 2.05)
    assert results[1].verdict == "helps"
    found = without_one_seed(curves, results, higher_is_better=True)
    assert found == {"plain": {}, "ema": {}}


def test_the_seed_that_a_verdict_hangs_on_is_named() -> None:
    curves, results = judged(2.0, 2.1, 1.9, 2.2, -1.0)
    assert results[1].verdict == "undecided"
    found = without_one_seed(curves, results, higher_is_better=True)
    assert found["ema"] == {4: "helps"}
    # The other way round, for a metric of which less is better.
    again = compare(curves, higher_is_better=False, smallest_effect=0.5)
    found = without_one_seed(curves, again, higher_is_better=False)
    assert found["ema"] == {4: "hurts"}


def test_every_seed_counts_with_the_fewest() -> None:
    curves, results = judged(2.0, 2.1, 1.9, math.nan, math.nan)
    assert results[1].verdict == "helps"
    found = without_one_seed(curves, results, higher_is_better=True)
    assert found["ema"] == dict.fromkeys(range(3), "undecided")


def test_the_number_of_seeds_that_would_decide_does_decide() -> None:
    _, results = judged(1.0, -0.2, 0.9, -0.3, 0.6)
    difference = results[1].difference
    assert difference is not None and results[1].verdict == "undecided"
    needed = seeds_to_decide(difference, 1)
    rounds = math.ceil(needed / 5)
    gains = [1.0, -0.2, 0.9, -0.3, 0.6] * rounds
    plain = ends(*(90.0 + 0.01 * k for k in range(len(gains))))
    curves = {
        "plain": plain,
        "ema": {seed: [run[-1] + gains[seed]] for seed, run in plain.items()},
    }
    more = compare(curves, higher_is_better=True, smallest_effect=0.5)
    assert more[1].verdict == "helps"
    assert 5 < needed < 40


def test_more_comparisons_need_more_seeds() -> None:
    _, results = judged(1.0, -0.2, 0.9, -0.3, 0.6)
    difference = results[1].difference
    assert difference is not None
    assert seeds_to_decide(difference, 5) > seeds_to_decide(difference, 1)


def test_without_spread_no_number_of_seeds_is_known() -> None:
    _, results = judged(0.0, 0.0, 0.0, 0.0, 0.0)
    difference = results[1].difference
    assert difference is not None and difference.p >= LEVEL
    assert seeds_to_decide(difference, 1) == pytest.approx(math.inf)
