"""Figures of an ablation: a heat map of gains, or curves per task."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from switch_ema.analysis.matplotlib_style import PAGE, colour_of, paper_style
from switch_ema.analysis.method_style import display_name
from switch_ema.bench.report.numbers import fixed
from switch_ema.paper.show.ablation_points import AblationPoint

_CLEAR = 2.0
"""Gain, in half widths of its interval, at which the colour scale saturates."""


@dataclass(frozen=True)
class Panel:
    """One task of an ablation."""

    title: str
    metric: str
    higher_is_better: bool
    digits: int
    points: Mapping[str, Sequence[AblationPoint]]
    """By method, in the order of the option's values."""
    baseline: tuple[float, float] | None = None
    """Mean and standard error of a method without the option."""


def draw_heat_map(panels: Sequence[Panel], symbol: str) -> Figure:
    """Draw the gain over the baseline setting, by task and value of the option.

    Colours show gains in half widths of their confidence intervals, to make tasks with
    different metrics comparable; a cell below 1 is within noise.
    """
    rows = [next(iter(panel.points.values())) for panel in panels]
    values = sorted({point.value for row in rows for point in row})
    clear = np.full((len(rows), len(values)), np.nan)
    with paper_style():
        figure = Figure(figsize=(PAGE, 0.9 + 0.45 * len(rows)))
        axes = figure.subplots()
        axes.grid(False)
        for y, (panel, row) in enumerate(zip(panels, rows, strict=True)):
            for point in row:
                x = values.index(point.value)
                clear[y, x], text = _cell(point, panel.digits)
                colour = "white" if abs(clear[y, x]) > 0.8 * _CLEAR else "black"
                axes.text(
                    x, y, text, ha="center", va="center", fontsize=7, color=colour
                )
        image = axes.imshow(
            clear, cmap="PuOr", vmin=-_CLEAR, vmax=_CLEAR, aspect="auto"
        )
        axes.set_xticks(range(len(values)), [f"{symbol} = {v:g}" for v in values])
        titles = [f"{p.title}\n{_metric(p)}" for p in panels]
        axes.set_yticks(range(len(rows)), titles, fontsize=7)
        bar = figure.colorbar(image, ax=axes)
        bar.set_label("gain / half width", fontsize=7)
        return figure


def draw_curves(panels: Sequence[Panel]) -> Figure:
    """Plot each task's metric against the decay, with bands of one standard error.

    Filled markers: no significant difference from the best setting of the method.
    """
    columns = min(5, len(panels))
    lines = math.ceil(len(panels) / columns)
    with paper_style():
        figure = Figure(figsize=(PAGE, 0.4 + 1.7 * lines))
        grid = figure.subplots(lines, columns, squeeze=False)
        for axes in grid.flat[len(panels) :]:
            axes.set_axis_off()
        for axes, panel in zip(grid.flat, panels, strict=False):
            _panel(axes, panel)
        handles, _ = grid.flat[0].get_legend_handles_labels()
        handles += _marker_keys()
        figure.legend(handles=handles, loc="outside lower center", ncols=3)
        return figure


def _marker_keys() -> list[Line2D]:
    """Explain filled and hollow markers."""
    meanings = {"0.5": "best of its method, or not distinguishable", "white": "worse"}
    style: dict[str, Any] = {"color": "0.5", "marker": "o", "markersize": 4, "ls": ""}
    return [
        Line2D([], [], markerfacecolor=face, label=text, **style)
        for face, text in meanings.items()
    ]


def _cell(point: AblationPoint, digits: int) -> tuple[float, str]:
    """Return a cell's gain in half widths and its text."""
    mark = "\n(~ best)" if point.within_noise else ""
    mark = "\n(best)" if point.is_best else mark
    gain = point.gain
    if gain is None:
        return 0.0, f"{fixed(point.mean, digits)}{mark}"
    half = (gain.high - gain.low) / 2
    ends = f"[{fixed(gain.low, digits)}, {fixed(gain.high, digits)}]"
    text = f"{fixed(gain.mean, digits, '+')}\n{ends}{mark}"
    clear = gain.mean / half if half > 0 else math.nan
    return clear, text


def _panel(axes: Axes, panel: Panel) -> None:
    ticks: dict[float, str] = {}
    for name, points in panel.points.items():
        x = np.array([-math.log10(1 - point.value) for point in points])
        mean = np.array([point.mean for point in points])
        error = np.array([point.error for point in points])
        ticks |= dict(zip(x.tolist(), (f"{p.value:g}" for p in points), strict=True))
        colour = colour_of(name)
        axes.fill_between(
            x, mean - error, mean + error, color=colour, alpha=0.2, linewidth=0
        )
        axes.plot(x, mean, color=colour, label=display_name(name))
        for place, point in zip(x, points, strict=True):
            axes.plot(
                place,
                point.mean,
                marker="o",
                markersize=4,
                color=colour,
                markerfacecolor=colour if point.within_noise else "white",
            )
    if panel.baseline is not None:
        mean_, error_ = panel.baseline
        axes.axhline(mean_, color=colour_of("plain"), linestyle=":", label="plain")
        axes.axhspan(
            mean_ - error_, mean_ + error_, color=colour_of("plain"), alpha=0.1, lw=0
        )
    places = sorted(ticks)
    axes.set_xticks(places, [ticks[place] for place in places], rotation=60, fontsize=6)
    axes.tick_params(axis="y", labelsize=6)
    axes.set_title(panel.title, fontsize=7)
    axes.set_ylabel(_metric(panel), fontsize=6)


def _metric(panel: Panel) -> str:
    direction = "higher" if panel.higher_is_better else "lower"
    return f"{panel.metric}, {direction} is better"
