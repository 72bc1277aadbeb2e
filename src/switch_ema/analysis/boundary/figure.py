"""Figures of decision boundaries in the plane and of their measures over seeds."""

from collections.abc import Sequence
from textwrap import wrap
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D

from switch_ema.analysis.boundary.contours import Floats
from switch_ema.analysis.boundary.measures import CONFIDENCE, PlaneGrid
from switch_ema.analysis.boundary.summary import MethodBoundaries, named
from switch_ema.analysis.intervals import Interval, interval
from switch_ema.analysis.matplotlib_style import COLOURS, PAGE, paper_style
from switch_ema.analysis.method_style import display_name, method_styles

_CONFIDENCE_COLOURS = LinearSegmentedColormap.from_list(
    "confidence", ["#b9bcc0", "#2f6fb5"]
)
"""Grey where the network is undecided, blue where it is certain."""
CLASSES = ("#d62728", "#f2c14e")
"""Colours of the labelled points of class 0 and class 1."""
_PER_ROW = 3


def draw_boundaries(
    methods: Sequence[MethodBoundaries],
    *,
    x: Floats,
    y: Floats,
    x_test: Floats,
    grid: PlaneGrid,
    seed: int = 0,
) -> Figure:
    """Draw one panel per method: points, boundary and confidence for one seed.

    Args:
        methods: measurements, all on the same data.
        x: labelled points, (seeds, points, 2).
        y: their classes, (seeds, points).
        x_test: the points where ``probabilities`` were computed.
        grid: the window.
        seed: index of the seed to draw, not its number.
    """
    if not 0 <= seed < len(x):
        raise ValueError(f"seed must be in [0, {len(x)}), got {seed}.")
    columns = min(_PER_ROW, len(methods))
    rows = -(-len(methods) // columns)
    tall = float(np.ptp(grid.y) / np.ptp(grid.x))
    with paper_style():
        title = 0.16 * max(2 + _folded(one.method).count("\n") for one in methods)
        height = rows * (PAGE / _PER_ROW * tall * 0.9 + 0.2 + title) + 0.45
        figure = Figure(
            figsize=(PAGE * (columns + 0.25) / (_PER_ROW + 0.25), height),
            layout=ConstrainedLayoutEngine(h_pad=0.08),
        )
        axes = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
        styles = method_styles(method.method for method in methods)
        for index, method in enumerate(methods):
            ax = axes.flat[index]
            dots = _draw_points(ax, method, x[seed], y[seed], x_test[seed], seed)
            _draw_lines(ax, method, COLOURS[styles[method.method].colour], seed)
            ax.set(xlim=(grid.x[0], grid.x[-1]), ylim=(grid.y[0], grid.y[-1]))
            ax.set_aspect("equal")
            ax.grid(False)
            ax.tick_params(labelbottom=True)  # there may be no panel below
            ax.set_title(f"{_folded(method.method)}\n{_score(method.accuracy[seed])}")
        for ax in axes.flat[len(methods) :]:
            ax.set_axis_off()
        bar = figure.colorbar(dots, ax=axes, shrink=0.85, pad=0.02)
        bar.set_label("confidence at test points")
        figure.legend(handles=_keys(), loc="outside lower center", ncols=4)
    return figure


def draw_measures(
    methods: Sequence[MethodBoundaries],
    measures: Sequence[str] = ("accuracy", "local_width", "calibration_error"),
) -> Figure:
    """Draw every seed as a dot, and the mean with its 97% interval, per method.

    With several methods, a second row shows paired differences from the first.
    """
    base, others = methods[0], methods[1:]
    heights = [len(methods), len(others)] if others else [1]
    with paper_style():
        size = (PAGE, 0.38 * sum(heights) + 0.75 * len(heights) + 0.2)
        figure = Figure(figsize=size)
        axes = figure.subplots(
            len(heights), len(measures), squeeze=False, height_ratios=heights
        )
        styles = method_styles(method.method for method in methods)
        colours = [COLOURS[style.colour] for style in styles.values()]
        for column, measure in enumerate(measures):
            values = [method.values(measure) for method in methods]
            names = [_folded(method.method) for method in methods]
            top = axes[0, column]
            _draw_strips(top, names, values, colours, labels=column == 0)
            top.set_xlabel(named(measure))
            if others:
                below = axes[1, column]
                shifts = [own - base.values(measure) for own in values[1:]]
                _draw_strips(below, names[1:], shifts, colours[1:], labels=column == 0)
                below.axvline(0, color=COLOURS[0], linewidth=0.8, zorder=0)
                below.set_xlabel(f"difference from {_folded(base.method)}")
        keys = _strip_keys(len(base.boundaries))
        figure.legend(handles=keys, loc="outside lower center", ncols=2)
    return figure


def _draw_points(
    ax: Axes, method: MethodBoundaries, x: Floats, y: Floats, x_test: Floats, seed: int
) -> Any:
    p = method.probabilities[seed]
    shown: dict[str, Any] = {
        "cmap": _CONFIDENCE_COLOURS,
        "vmin": 0.5,
        "vmax": 1,
        "linewidths": 0,
    }
    confidence = np.maximum(p, 1 - p)
    dots = ax.scatter(x_test[:, 0], x_test[:, 1], s=5, c=confidence, **shown)
    mark: dict[str, Any] = {
        "marker": "^",
        "s": 22,
        "edgecolors": "black",
        "linewidths": 0.5,
    }
    for label, colour in enumerate(CLASSES):
        chosen = x[y == label]
        ax.scatter(chosen[:, 0], chosen[:, 1], c=colour, **mark)
    return dots


def _draw_lines(ax: Axes, method: MethodBoundaries, colour: str, seed: int) -> None:
    found = method.boundaries[seed]
    thin = LineCollection([*found.low, *found.high], colors=colour, linewidths=0.7)
    thin.set_linestyle((0, (4, 2)))
    ax.add_collection(thin)
    ax.add_collection(LineCollection([*found.lines], colors=colour, linewidths=1.5))
    if not found.lines:
        place: dict[str, Any] = {
            "ha": "center",
            "va": "center",
            "backgroundcolor": "white",
        }
        ax.text(0.5, 0.5, "no boundary", transform=ax.transAxes, **place)


def _keys() -> list[Line2D]:
    """Explain the markers; lines have the method's colour."""
    marks: dict[str, Any] = {"marker": "^", "markeredgecolor": "black", "ls": "none"}
    low, high = f"{1 - CONFIDENCE:g}", f"{CONFIDENCE:g}"
    return [
        *(
            Line2D([], [], color=colour, label=f"labelled, class {label}", **marks)
            for label, colour in enumerate(CLASSES)
        ),
        Line2D([], [], color=COLOURS[0], linewidth=1.5, label="boundary, p = 0.5"),
        Line2D([], [], color=COLOURS[0], lw=0.7, ls="--", label=f"p = {low}, {high}"),
    ]


def _draw_strips(
    ax: Axes,
    names: Sequence[str],
    values: Sequence[Floats],
    colours: Sequence[str],
    *,
    labels: bool,
) -> None:
    """Draw one row per method: its seeds, with mean and interval above them."""
    for row, own in enumerate(values):
        colour = colours[row % len(colours)]
        # The same for every method, so each seed stays at one height.
        heights = row + 0.18 + 0.2 * np.linspace(-1, 1, len(own))[_mixed(len(own))]
        ax.scatter(own, heights, s=7, color=colour, alpha=0.45, linewidths=0)
        found = interval(own)
        _draw_interval(ax, found, row - 0.22, colour)
        if found.n < len(own):
            place: dict[str, Any] = {"ha": "right", "va": "center", "fontsize": 7}
            at = ax.get_yaxis_transform()
            ax.text(1, row - 0.22, f"n = {found.n}", transform=at, **place)
    ax.set_ylim(len(values) - 0.5, -0.5)
    ax.set_yticks(range(len(names)), names if labels else [""] * len(names))
    ax.tick_params(axis="y", length=0)
    ax.grid(False, axis="y")


def _draw_interval(ax: Axes, found: Interval, height: float, colour: str) -> None:
    ax.plot(found.mean, height, "D", color=colour, markersize=3.5)
    ax.plot([found.low, found.high], [height, height], color=colour, linewidth=1.8)


def _score(accuracy: float) -> str:
    return f"accuracy {accuracy:.1f}%" if np.isfinite(accuracy) else "diverged"


def _strip_keys(seeds: int) -> list[Line2D]:
    dot: dict[str, Any] = {"marker": "o", "markersize": 3, "alpha": 0.45, "ls": "none"}
    mean: dict[str, Any] = {"marker": "D", "markersize": 3.5, "linewidth": 1.8}
    return [
        Line2D([], [], color=COLOURS[0], label=f"one seed of {seeds}", **dot),
        Line2D(
            [],
            [],
            color=COLOURS[0],
            label=f"mean and its {CONFIDENCE} interval",
            **mean,
        ),
    ]


def _folded(name: str) -> str:
    """Break a method's name before its options, and again if it is still long."""
    method, _, options = display_name(name).partition(", ")
    lines = wrap(options, 24)
    return "\n".join([f"{method}," if lines else method, *lines])


def _mixed(count: int) -> Any:
    """Return a fixed order in which neighbours are far apart."""
    return np.random.default_rng(0).permutation(count)
