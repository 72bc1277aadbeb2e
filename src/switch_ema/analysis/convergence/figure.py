"""Metrics against epochs: one panel per task, with shared colours."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from switch_ema.analysis.matplotlib_style import (
    line_of,
    panel_grid,
    paper_style,
    wrapped,
)
from switch_ema.analysis.method_style import MethodStyle, method_styles


@dataclass(frozen=True)
class Curve:
    """One method: mean over seeds and its standard error, epoch by epoch."""

    epochs: Sequence[int]
    mean: Sequence[float]
    error: Sequence[float]


@dataclass(frozen=True)
class CurvePanel:
    """One task."""

    title: str
    metric: str
    """Name of the metric, with its unit and direction."""
    curves: Mapping[str, Curve]
    """By method."""
    shown: tuple[float, float] | None = None
    """Limits of the vertical axis; None for all data."""


def draw_convergence(panels: Sequence[CurvePanel]) -> Figure:
    """Draw mean and standard error of every method against epochs.

    Raises:
        ValueError: no panel has a curve.
    """
    styles = method_styles(label for panel in panels for label in panel.curves)
    if not styles:
        raise ValueError("panels must have at least one curve, got none.")
    with paper_style():
        figure, grid = panel_grid(len(panels), height=1.85, below=0.45)
        for axes, panel in zip(grid, panels, strict=True):
            _draw_panel(axes, panel, styles)
        handles = [
            Line2D([], [], label=look.name, **line_of(look)) for look in styles.values()
        ]
        figure.legend(
            handles=handles, loc="outside lower center", ncols=min(4, len(handles))
        )
    return figure


def _draw_panel(
    axes: Axes, panel: CurvePanel, styles: Mapping[str, MethodStyle]
) -> None:
    for label, curve in panel.curves.items():
        style = line_of(styles[label])
        mean, error = np.array(curve.mean), np.array(curve.error)
        axes.fill_between(
            curve.epochs,
            mean - error,
            mean + error,
            color=style["color"],
            alpha=0.2,
            linewidth=0,
        )
        marker = "." if len(curve.epochs) < 4 else ""
        axes.plot(curve.epochs, mean, marker=marker, **style)
    if panel.shown is not None:
        axes.set_ylim(panel.shown)
    axes.set_title(wrapped(panel.title), fontsize=8)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.set_xlabel("epoch", fontsize=7)
    axes.set_ylabel(panel.metric, fontsize=7)
    axes.tick_params(labelsize=6)
