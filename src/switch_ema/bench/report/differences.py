"""Each method's difference from the baseline per seed, with mean and interval."""

from collections.abc import Mapping

from switch_ema.bench.recipe import Metric
from switch_ema.bench.report.figures import (
    HOVER,
    ROW_HEIGHT,
    Figure,
    Json,
    PageStyles,
    label,
    range_of,
    rows_layout,
)
from switch_ema.bench.report.numbers import (
    difference_unit,
    digits_for,
    fixed,
    shortened,
    typographic,
)
from switch_ema.bench.report.page_style import PageStyle
from switch_ema.bench.report.rows import baseline_of
from switch_ema.bench.stats.paired import (
    CONFIDENCE,
    Difference,
    MethodResult,
    paired_differences,
)
from switch_ema.bench.stats.summary import TaskSummary


def differences(
    task: TaskSummary, metric: Metric, styles: PageStyles, key: str
) -> Figure:
    """Plot the difference from the baseline per seed, with mean and interval."""
    results = task.results[metric.name]
    baseline = baseline_of(results)
    curves, better = task.curves[metric.name], metric.higher_is_better
    compared = [result for result in results if result.method != baseline]
    heights = _heights(sorted(curves[baseline]))
    traces: list[Json] = []
    labels = []
    for row, result in enumerate(compared):
        name = result.method
        pairs = paired_differences(curves, name, baseline, higher_is_better=better)
        dots = {heights[seed] - row: (seed, pairs[seed]) for seed in sorted(pairs)}
        traces.append(_dots(dots, styles[name], name, digits_for(results)))
        if result.difference is not None:
            mean = _mean(result.difference, styles[name], name, digits_for(results))
            traces.append({**mean, "y": [-row - 0.26]})
        labels.append(name if pairs else f"{name}: no paired seed")
    unit = difference_unit(metric)
    title = f"difference from {shortened(baseline, 20)}{f' ({unit})' if unit else ''}"
    return Figure(
        id=key,
        caption=_caption(compared, metric, baseline),
        alternative=_alternative(compared, metric, baseline, digits_for(results)),
        height=ROW_HEIGHT * len(compared) + 76,
        traces=traces,
        layout=rows_layout(labels, title),
    )


def _caption(compared: list[MethodResult], metric: Metric, baseline: str) -> str:
    n = sorted({result.difference.n for result in compared if result.difference})
    direction = "higher" if metric.higher_is_better else "lower"
    return (
        f"Difference from {baseline} in {metric.name} at the last epoch; right of zero "
        f"is better ({direction}). Dots: one per seed, the same seed at the same "
        f"height in every row. Diamonds and bars: mean and its {CONFIDENCE} confidence "
        "interval, corrected over the methods like the p-values, "
        f"n = {range_of(n)} pairs."
    )


def _alternative(
    compared: list[MethodResult], metric: Metric, baseline: str, digits: int
) -> str:
    means = [
        f"{r.method} {typographic(fixed(r.difference.mean, digits, '+'))}"
        for r in compared
        if r.difference
    ]
    return (
        f"Differences from {baseline} in {metric.name} by seed; positive is better. "
        f"Mean differences: {', '.join(means) or 'none'}."
    )


def _heights(seeds: list[int]) -> dict[int, float]:
    """Spread the seeds over the height of a row to separate their dots."""
    step = 0.22 / max(1, len(seeds) - 1)
    return {seed: 0.11 - step * place for place, seed in enumerate(seeds)}


def _dots(
    dots: Mapping[float, tuple[int, float]], style: PageStyle, method: str, digits: int
) -> Json:
    return {
        "x": [value for _, value in dots.values()],
        "y": list(dots),
        "mode": "markers",
        "marker": {"size": 7 if len(dots) <= 32 else 4},
        "name": label(method),
        "customdata": [
            typographic(f"seed {seed}: {fixed(value, digits, '+')}")
            for seed, value in dots.values()
        ],
        "hovertemplate": HOVER,
        "meta": {"colour": style.colour, "method": style.index, "role": "dots"},
    }


def _mean(difference: Difference, style: PageStyle, method: str, digits: int) -> Json:
    low, mean, high = difference.low, difference.mean, difference.high
    interval, text = {}, f"mean {fixed(mean, digits, '+')} (n = {difference.n})"
    if difference.sd:
        text = (
            f"mean {fixed(mean, digits, '+')} ({CONFIDENCE} CI {fixed(low, digits)} to "
            f"{fixed(high, digits)}, n = {difference.n})"
        )
        interval = {
            "error_x": {
                "type": "data",
                "symmetric": False,
                "array": [high - mean],
                "arrayminus": [mean - low],
                "thickness": 2,
                "width": 5,
            }
        }
    return {
        "x": [mean],
        "mode": "markers",
        "marker": {"size": 9, "symbol": "diamond"},
        **interval,
        "name": label(method),
        "customdata": [typographic(text)],
        "hovertemplate": HOVER,
        "meta": {"colour": style.colour, "method": style.index, "role": "mean"},
    }
