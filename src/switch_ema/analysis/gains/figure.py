"""Differences of methods from the baseline: one panel per task, one line each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from switch_ema.analysis.matplotlib_style import (
    COLOURS,
    panel_grid,
    paper_style,
    wrapped,
)
from switch_ema.analysis.method_style import MethodStyle, method_styles

_LINE = 0.16
"""Height of a method's line in inches."""


@dataclass(frozen=True)
class Gain:
    """One method: the mean of its paired differences, and their interval.

    The ends are NaN without an interval: the differences hardly vary.
    """

    mean: float
    low: float
    high: float

    @property
    def is_decided(self) -> bool:
        """Whether the interval excludes zero."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True)
class GainPanel:
    """One task."""

    title: str
    metric: str
    """Name of the metric, with its unit."""
    gains: Mapping[str, Gain]
    """Gains by method, in drawing order."""


def draw_gains(panels: Sequence[GainPanel]) -> Figure:
    """Draw the interval of every method; filled points: interval excludes zero.

    Raises:
        ValueError: no panel has a method.
    """
    styles = method_styles(label for panel in panels for label in panel.gains)
    if not styles:
        raise ValueError("panels must have at least one method, got none.")
    with paper_style():
        height = 0.75 + _LINE * len(styles)
        figure, grid = panel_grid(len(panels), height=height, share_y=True)
        for axes, panel in zip(grid, panels, strict=True):
            _draw_panel(axes, panel, styles)
        names = [wrapped(style.name) for style in styles.values()]
        grid[0].set_yticks(range(len(styles)), names, fontsize=6.5)
        grid[0].set_ylim(len(styles) - 0.5, -0.5)
    return figure


def _draw_panel(
    axes: Axes, panel: GainPanel, styles: Mapping[str, MethodStyle]
) -> None:
    axes.axvline(0, color="0.4", linewidth=0.8)
    for row, (label, style) in enumerate(styles.items()):
        gain = panel.gains.get(label)
        if gain is None:
            continue
        colour = COLOURS[style.colour]
        axes.plot([gain.low, gain.high], [row, row], color=colour, linewidth=1.2)
        filling = colour if gain.is_decided else "white"
        axes.plot(gain.mean, row, "o", color=colour, mfc=filling, markersize=3.5)
    axes.set_title(wrapped(panel.title), fontsize=7)
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.set_xlabel(panel.metric, fontsize=6.5)
    axes.tick_params(labelsize=6)
    axes.grid(visible=False, axis="y")
