"""Tables of the values after rounding the final weights, from ``--deploy``."""

from dataclasses import replace

from switch_ema.bench.recipe import rounded_metric
from switch_ema.bench.report.numbers import (
    NONE,
    difference_unit,
    digits_for,
    fixed,
    with_unit,
)
from switch_ema.bench.report.rows import (
    NEAR_TIES,
    baseline_of,
    interval_of,
    make_rows,
)
from switch_ema.bench.report.sections import Sheet
from switch_ema.bench.stats.paired import CONFIDENCE, Difference, head_to_head
from switch_ema.bench.stats.summary import TaskSummary


def rounding_sheets(task: TaskSummary) -> list[Sheet]:
    """Make a table for each rounding: gaps between methods, and the change by it."""
    return [_sheet(task, kind) for kind in task.roundings]


def _sheet(task: TaskSummary, kind: str) -> Sheet:
    metric, own = task.metrics[0], rounded_metric(task.metrics[0], kind)
    results, unit = task.results[own.name], difference_unit(metric)
    changes, digits = rounding_changes(task, kind)
    rows = [
        [
            row.method,
            row.last,
            _joined(row.difference, row.interval),
            change_text(changes[row.method], digits),
            row.n,
        ]
        for row in make_rows(task, own)
    ]
    baseline = baseline_of(results) if results else ""
    return Sheet(
        caption=f"Final weights rounded to {kind}; the change is from the same "
        f"weights before rounding. Differences{f' in {unit}' if unit else ''}: "
        "positive is better.",
        header=[
            "method",
            with_unit(own),
            f"vs {baseline} [{CONFIDENCE} CI]",
            f"change [{CONFIDENCE} CI]",
            "n",
        ],
        rows=rows,
    )


def rounding_changes(
    task: TaskSummary, kind: str
) -> tuple[dict[str, Difference | None], int]:
    """Return the change of every method, and the decimals to show them with."""
    results = task.results[rounded_metric(task.metrics[0], kind).name]
    found = {r.method: rounding_change(task, r.method, kind) for r in results}
    return found, digits_for(replace(r, difference=found[r.method]) for r in results)


def rounding_change(task: TaskSummary, method: str, kind: str) -> Difference | None:
    """Compare a method's rounded weights with its own before, paired by seed.

    None with fewer than two seeds.
    """
    metric = task.metrics[0]
    before = task.curves[metric.name].get(method, {})
    after = task.curves[rounded_metric(metric, kind).name].get(method, {})
    return head_to_head(
        {"before": before, "after": after},
        "after",
        "before",
        higher_is_better=metric.higher_is_better,
        sequential=task.sequential,
    )


def rounding_head_to_head(
    task: TaskSummary, method: str, other: str, kind: str
) -> Difference | None:
    """Compare the changes of two methods by rounding, positive if the first loses less.

    Paired by seed; p is not corrected. None with fewer than two seeds.
    """
    metric = task.metrics[0]
    before, after = (
        task.curves[name] for name in (metric.name, rounded_metric(metric, kind).name)
    )
    changes = {
        one: {
            seed: [after[one][seed][-1] - curve[-1]]
            for seed, curve in before[one].items()
            if curve and after[one].get(seed)
        }
        for one in (method, other)
    }
    return head_to_head(
        changes,
        method,
        other,
        higher_is_better=metric.higher_is_better,
        sequential=task.sequential,
    )


def change_text(change: Difference | None, digits: int) -> str:
    """Write a change with its interval."""
    if change is None:
        return NONE
    interval = interval_of(change, digits) if change.sd else NEAR_TIES
    return _joined(fixed(change.mean, digits, "+"), interval)


def _joined(difference: str, interval: str) -> str:
    return difference if interval == NONE else f"{difference} {interval}"
