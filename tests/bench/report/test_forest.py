"""The forest plot: every difference in its place on an axis that has zero."""

import pytest

from switch_ema.bench.report.forest import forest
from switch_ema.bench.report.page_style import page_styles
from switch_ema.bench.stats.summary import TaskSummary
from tests.bench.report.synthetic import make_diverged_task, make_task


def of(task: TaskSummary):
    return forest(task, page_styles([task]))


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
