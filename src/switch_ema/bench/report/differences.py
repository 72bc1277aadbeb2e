"""Seed by seed: each method's difference to the baseline, with mean and interval."""

from collections.abc import Mapping

from switch_ema.bench.report.curves import paired_differences
from switch_ema.bench.report.figures import (
    HOVER,
    ROW_HEIGHT,
    Figure,
    Json,
    Looks,
    label,
    range_of,
    rows_layout,
)
from switch_ema.bench.report.looks import Look
from switch_ema.bench.report.numbers import (
    difference_unit,
    digits_for,
    fixed,
    shortened,
    typographic,
)
from switch_ema.bench.report.rows import baseline_of
from switch_ema.bench.stats import MethodResult
from switch_ema.bench.summary import TaskSummary
from switch_ema.bench.task import Metric


def differences(task: TaskSummary, metric: Metric, looks: Looks, key: str) -> Figure:
    """Draw the difference to the baseline, seed by seed, with mean and interval."""
    results = task.results[metric.name]
    baseline = baseline_of(results)
    compared = [result for result in results if result.method != baseline]
    digits = digits_for(results)
    traces: list[Json] = []
    labels = []
    for row, result in enumerate(compared):
        pairs = paired_differences(
            task.curves[metric.name],
            result.method,
            baseline,
            higher_is_better=metric.higher_is_better,
        )
        traces += _pairs(result, pairs, looks[result.method], -row, digits)
        labels.append(result.method if pairs else f"{result.method}: no paired seed")
    unit = difference_unit(metric)
    title = f"difference to {shortened(baseline, 20)}{f' ({unit})' if unit else ''}"
    n = sorted({result.difference.n for result in compared if result.difference})
    means = [
        f"{r.method} {typographic(fixed(r.difference.mean, digits, '+'))}"
        for r in compared
        if r.difference
    ]
    direction = "higher" if metric.higher_is_better else "lower"
    return Figure(
        id=key,
        caption=f"{metric.name} at the last epoch, difference to {baseline}; to the "
        f"right of zero is better ({direction} {metric.name}). Dots: one per seed, "
        "the same seeds at the same height in every row. Diamond and bar: mean and its "
        f"95% confidence interval, n = {range_of(n)} pairs of seeds.",
        alternative=f"Differences to {baseline} in {metric.name} by seed, positive is "
        f"better. Mean differences: {', '.join(means) or 'none'}.",
        height=ROW_HEIGHT * len(compared) + 76,
        traces=traces,
        layout=rows_layout(labels, title),
    )


def _pairs(
    result: MethodResult, pairs: Mapping[int, float], look: Look, y: int, digits: int
) -> list[Json]:
    """Return one row: a dot per seed, and below them mean and interval."""
    order = sorted(pairs)
    step = 0.24 / max(1, len(order) - 1)
    meta = {"colour": look.colour, "method": look.index}
    dots = {
        "x": [pairs[seed] for seed in order],
        "y": [y + 0.12 - step * place for place in range(len(order))],
        "mode": "markers",
        "marker": {"size": 7 if len(order) <= 32 else 4},
        "customdata": [
            typographic(f"seed {seed}: {fixed(pairs[seed], digits, '+')}")
            for seed in order
        ],
        "name": label(result.method),
        "hovertemplate": HOVER,
        "meta": {**meta, "role": "dots"},
    }
    difference = result.difference
    if difference is None:
        return [dots]
    spread = [fixed(v, digits) for v in (difference.low, difference.high)]
    mean = {
        "x": [difference.mean],
        "y": [y - 0.26],
        "mode": "markers",
        "marker": {"size": 9, "symbol": "diamond"},
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [difference.high - difference.mean],
            "arrayminus": [difference.mean - difference.low],
            "thickness": 2,
            "width": 5,
        },
        "name": label(result.method),
        "customdata": [
            typographic(
                f"mean {fixed(difference.mean, digits, '+')} "
                f"(95% CI {' to '.join(spread)}, n = {difference.n})"
            )
        ],
        "hovertemplate": HOVER,
        "meta": {**meta, "role": "mean"},
    }
    return [dots, mean]
