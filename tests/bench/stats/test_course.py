"""The course of training, and comparisons at best epochs that flatter nobody."""

import math
import random
from statistics import fmean

import pytest

from switch_ema.bench.stats.course import Course, at_best_epochs, course
from switch_ema.bench.stats.paired import compare, head_to_head


def noisy(
    mean: list[float], *, seeds: int = 8, noise: float = 0.3, start: int = 0
) -> dict[int, list[float]]:
    draw = random.Random(start)
    return {
        seed: [value + draw.gauss(0, noise) for value in mean] for seed in range(seeds)
    }


def course_of(mean: list[float], *, smallest: float = 0.5, **options) -> Course:
    found = course(
        {"plain": noisy(mean, **options)},
        "plain",
        higher_is_better=True,
        smallest=smallest,
    )
    assert found is not None
    return found


RISING = [90 - 3 * 0.8**epoch for epoch in range(20)]
PEAK = [*(90 - 2 * abs(6 - epoch) for epoch in range(7)), *(89.0 - e for e in range(5))]


def test_a_curve_that_falls_after_its_peak_is_over_trained() -> None:
    found = course_of(PEAK)
    assert (found.state, found.epoch, found.is_recovering) == ("peaked", 7, False)
    assert found.best == pytest.approx(90, abs=0.3)
    assert found.decline.mean == pytest.approx(found.best - found.last)
    assert found.decline.low < 5 < found.decline.high


def test_values_of_a_loss_keep_their_sign() -> None:
    losses = {
        seed: [(100 - value) / 100 for value in run]
        for seed, run in noisy(PEAK).items()
    }
    found = course({"sgd": losses}, "sgd", higher_is_better=False, smallest=0.001)
    assert found is not None
    assert (found.state, found.epoch) == ("peaked", 7)
    assert found.best < found.last
    assert found.decline.mean == pytest.approx(found.last - found.best)


def test_a_curve_that_rises_to_the_end_is_still_improving() -> None:
    found = course_of([float(epoch) for epoch in range(12)])
    assert (found.state, found.epoch, found.window) == ("improving", 12, 3)
    assert found.recent.low < 3 < found.recent.high


def test_a_curve_that_changes_less_than_matters_is_flat() -> None:
    assert course_of(RISING, noise=0.1).state == "flat"
    assert course_of(RISING, noise=0.1, smallest=0.001).state == "unclear"


def test_noise_is_no_course() -> None:
    assert course_of(RISING, noise=3.0, seeds=4).state == "unclear"


def test_two_seeds_are_too_few_for_a_claim() -> None:
    assert course_of(PEAK, seeds=2).state == "unclear"
    assert course_of(PEAK, seeds=3, noise=0.1).state == "peaked"


def test_a_second_rise_is_told() -> None:
    dip = [80.0, 90.0, 85.0, 80.0, 82.0, 84.0, 86.0, 87.0]
    found = course_of(dip)
    assert (found.state, found.epoch, found.is_recovering) == ("peaked", 2, True)


def test_epochs_without_evaluation_are_skipped() -> None:
    runs = noisy(PEAK, noise=0.1)
    for run in runs.values():
        run[:] = [v if epoch % 2 == 0 else math.nan for epoch, v in enumerate(run)]
        run[-1] = 85.0
    found = course({"plain": runs}, "plain", higher_is_better=True, smallest=0.5)
    assert found is not None
    assert (found.state, found.epoch, found.window) == ("peaked", 7, 1)


@pytest.mark.parametrize(
    "runs",
    [{}, {0: [1.0, 2.0]}, {0: [1.0], 1: [2.0]}, {0: [1.0, math.nan], 1: [1.0, 2.0]}],
)
def test_one_seed_or_one_value_has_no_course(runs: dict[int, list[float]]) -> None:
    curves = {"plain": runs}
    assert course(curves, "plain", higher_is_better=True, smallest=1.0) is None


def test_noise_alone_is_rarely_called_over_training() -> None:
    """Read at the best epoch of all seeds' mean, 13% would be."""
    states = [course_of([0.0] * 30, noise=1, start=s, smallest=0) for s in range(300)]
    peaked = sum(found.state == "peaked" for found in states)
    assert peaked <= 0.05 * len(states)
    assert abs(fmean(found.decline.mean for found in states)) < 0.06


def test_each_half_of_the_seeds_uses_the_epoch_of_the_other() -> None:
    curves = {
        "plain": {3: [1.0, 5.0, 2.0], 4: [7.0, 2.0, 3.0], 8: [0.0, 6.0, 1.0]},
        "ema": {3: [0.0, 0.0, 9.0], 4: [1.0, 0.0, 8.0]},
    }
    found = at_best_epochs(curves, higher_is_better=True)
    # Seeds 3 and 8 are best in the second epoch, seed 4 in the first.
    assert found["plain"] == {3: [1.0], 4: [2.0], 8: [0.0]}
    assert found["ema"] == {3: [9.0], 4: [8.0]}
    lowest = at_best_epochs(curves, higher_is_better=False)
    assert lowest["plain"] == {3: [5.0], 4: [7.0], 8: [6.0]}


def test_a_gain_that_is_only_over_training_vanishes_at_the_best_epochs() -> None:
    steady = [min(90.0, 78.0 + 2 * epoch) for epoch in range(len(PEAK))]
    curves = {"plain": noisy(PEAK), "ema": noisy(steady, start=1)}
    last = head_to_head(curves, "ema", "plain", higher_is_better=True)
    assert last is not None and last.low > 3
    best = at_best_epochs(curves, higher_is_better=True)
    gap = compare(best, higher_is_better=True)[1].difference
    assert gap is not None and gap.low < 0 < gap.high


def test_a_single_seed_has_no_other_half() -> None:
    curves = {"plain": {0: [1.0, 2.0]}, "ema": {}}
    assert at_best_epochs(curves, higher_is_better=True) == {"plain": {}, "ema": {}}
