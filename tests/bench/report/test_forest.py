"""Forest plots: every difference in its place on an axis with ticks and zero."""

from dataclasses import replace
from itertools import pairwise

import pytest

from switch_ema.bench.report.forest import Forest, forests
from switch_ema.bench.report.page_style import page_styles
from switch_ema.bench.stats.summary import TaskSummary
from tests.bench.report.synthetic import make_diverged_task, make_task


def of(task: TaskSummary) -> Forest:
    (found,) = forests([task], page_styles([task]))
    return found


@pytest.mark.parametrize("sign", [1, -1])
def test_places_are_proportional_and_zero_is_on_the_axis(sign: int) -> None:
    task = make_task("digits", {"plain": 0.0, "ema": 2.0 * sign, "swa": 5.0 * sign})
    found = of(task)
    assert 0 < found.zero < 100
    by_method = {row.method: row for row in found.rows}
    ratios = []
    for result in task.results["accuracy"]:
        if result.difference is None:
            continue
        row, d = by_method[result.method], result.difference
        assert 0 <= row.low <= row.mean <= row.high <= 100
        ratios += [
            (row.mean - found.zero) / d.mean,
            (row.high - row.low) / (d.high - d.low),
        ]
    assert ratios == pytest.approx([ratios[0]] * len(ratios), rel=0.01)


def test_the_largest_difference_comes_first() -> None:
    found = of(
        make_task("digits", {"plain": 0.0, "ema": 1.0, "swa": -3.0, "lawa": 4.0})
    )
    assert [row.method for row in found.rows] == ["lawa", "ema", "swa"]


def test_methods_without_a_pair_take_no_place() -> None:
    task = make_diverged_task()
    results = task.results[task.metrics[0].name]
    paired = {r.method for r in results if r.difference}
    assert {row.method for row in of(task).rows} == paired < {r.method for r in results}
    assert all(0 <= row.mean <= 100 for row in of(task).rows)


def test_a_difference_without_spread_has_words_for_its_interval() -> None:
    task = make_task("digits", {"plain": 0.0, "ema": 0.0}, noise=0.0)
    (row,) = of(task).rows
    assert (row.interval, row.low, row.high) == ("near ties", row.mean, row.mean)


def test_tasks_with_the_same_metric_share_their_axis() -> None:
    tasks = [
        make_task("noisy", {"plain": 0.0, "ema": 11.0}),
        make_task("clean", {"plain": 0.0, "ema": -0.1}),
    ]
    first, second = forests(tasks, page_styles(tasks))
    assert (first.zero, first.ticks) == (second.zero, second.ticks)
    lengths = [abs(found.rows[0].mean - found.zero) for found in (first, second)]
    means = [
        abs(result.difference.mean)
        for task in tasks
        for result in task.results["accuracy"]
        if result.difference
    ]
    assert lengths[0] / lengths[1] == pytest.approx(means[0] / means[1], rel=0.05)
    assert lengths[0] > 20 * lengths[1]


def test_another_metric_has_an_axis_of_its_own() -> None:
    task = make_task("noisy", {"plain": 0.0, "ema": 11.0})
    loss = replace(task, metrics=task.metrics[::-1])
    alone, (_, beside) = of(loss), forests([task, loss], page_styles([task]))
    assert beside == alone
    assert alone.ticks != of(task).ticks


@pytest.mark.parametrize("gain", [12.0, 0.3, -0.004, -70.0, 1e-9, 4e12])
def test_ticks_are_round_even_and_few(gain: float) -> None:
    gains = {"plain": 0.0, "ema": gain}
    found = of(make_task("digits", gains, noise=abs(gain) / 10))
    places = [place for place, _ in found.ticks]
    assert (found.zero, "0") in found.ticks
    assert 2 <= len(places) <= 4
    assert all(0 <= place <= 100 for place in places)
    steps = [b - a for a, b in pairwise(places)]
    assert steps == pytest.approx([steps[0]] * len(steps), abs=0.02)
    value = {label: place for place, label in found.ticks}
    unit = next(label for label in value if label != "0")
    digits = unit.lstrip("+-0.").partition("e")[0].replace(".", "").rstrip("0")
    assert digits in ("1", "2", "4", "5", "6", "8", "15")
