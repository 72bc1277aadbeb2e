"""Convergence curves: one metric against epochs, one line per method."""

from switch_ema.analysis.method_style import display_name
from switch_ema.bench.recipe import Metric
from switch_ema.bench.report.curves import Band, band, visible_range
from switch_ema.bench.report.figures import (
    Figure,
    Json,
    PageStyles,
    band_and_line,
    plain,
    range_of,
)
from switch_ema.bench.report.numbers import (
    digits_of,
    fixed,
    shortened,
    typographic,
    with_unit,
)
from switch_ema.bench.report.page_style import PageStyle
from switch_ema.bench.report.rows import baseline_of, number_of_seeds
from switch_ema.bench.stats.summary import TaskSummary
from switch_ema.bench.text import counted


def convergence(
    task: TaskSummary, metric: Metric, styles: PageStyles, key: str
) -> Figure:
    """Plot one metric against epochs: mean and standard error per method."""
    curves = task.curves[metric.name]
    results = task.results[metric.name]
    bands = {result.method: band(curves[result.method]) for result in results}
    digits = digits_of(metric, results) + 1
    traces: list[Json] = []
    for method, own in bands.items():
        if own:
            traces += _curve(method, own, styles[method], digits)
    drawn = [own for own in bands.values() if own]
    shown = visible_range(drawn, bands[baseline_of(results)])
    last = max((own.epochs[-1] for own in drawn), default=1)
    x_axis: Json = {"title": {"text": "epoch"}, "range": [0.5, last + 0.5]}
    x_axis |= {"dtick": 1} if last <= 12 else {"nticks": 9}
    y_axis: Json = {"title": {"text": plain(shortened(with_unit(metric), 40))}}
    if shown:
        y_axis["range"] = list(shown)
    ends = [
        f"{m} {typographic(fixed(own.mean[-1], digits))}"
        for m, own in bands.items()
        if own
    ]
    return Figure(
        id=key,
        caption=_caption(task, metric, drawn, cut=shown is not None),
        alternative=f"Line chart of {with_unit(metric)} by epoch, one line per method. "
        f"Mean at the last epoch: {', '.join(ends)}.",
        height=360,
        traces=traces,
        layout={"xaxis": x_axis, "yaxis": y_axis},
        legend=[(display_name(method), styles[method]) for method in bands],
        is_cut=shown is not None,
    )


def _curve(method: str, own: Band, style: PageStyle, digits: int) -> list[Json]:
    hover = [
        typographic(
            f"epoch {e}: {fixed(mean, digits)} (standard error "
            f"{fixed(error, digits)}, n = {n})"
        )
        for e, mean, error, n in zip(
            own.epochs, own.mean, own.error, own.n, strict=True
        )
    ]
    is_short = len(own.epochs) <= 3
    return band_and_line(
        method, style, own.epochs, own.mean, own.error, hover, markers=is_short
    )


def _caption(task: TaskSummary, metric: Metric, bands: list[Band], *, cut: bool) -> str:
    n = sorted({n for own in bands for n in own.n})
    direction = "Higher" if metric.higher_is_better else "Lower"
    text = (
        f"Lines: mean {metric.name} over {counted(number_of_seeds(task), 'seed')} "
        f"{_when(task)}. Bands: one standard error of the mean to each side. "
        f"{direction} is better."
    )
    if len(n) > 1:
        text += (
            f" Each epoch averages only seeds with a finite value "
            f"(n = {range_of(n)}), so the mean is optimistic once a seed drops out."
        )
    if cut:
        text += " The vertical axis is cropped to where the methods differ."
    return text


def _when(task: TaskSummary) -> str:
    if task.evaluate_every == 1:
        return "after every epoch"
    return f"after every {task.evaluate_every} epochs and after the last"
