"""Gains against training losses: one panel per task, one point per method."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import spearmanr  # type: ignore[import-untyped]

from switch_ema.analysis.gains.figure import Gain
from switch_ema.analysis.matplotlib_style import (
    COLOURS,
    MARKERS,
    panel_grid,
    paper_style,
    wrapped,
)
from switch_ema.analysis.method_style import MethodStyle, method_styles

_FEWEST = 4
"""A rank correlation of fewer methods says nothing."""
_COLUMNS = 3
"""Columns of the legend."""


@dataclass(frozen=True)
class FittedMethod:
    """One method: its mean training loss, and its gain over the reference."""

    loss: float
    gain: Gain


@dataclass(frozen=True)
class MechanismPanel:
    """One task."""

    title: str
    metric: str
    """Name of the metric, with its unit."""
    methods: Mapping[str, FittedMethod]

    @property
    def rank_correlation(self) -> float | None:
        """Spearman's correlation of losses and gains of averages; None for few.

        Without averaging, weights end with a higher loss than their average.
        """
        averages = [own for name, own in self.methods.items() if name != "plain"]
        if len(averages) < _FEWEST:
            return None
        losses = [method.loss for method in averages]
        gains = [method.gain.mean for method in averages]
        return float(spearmanr(losses, gains).statistic)


def draw_mechanism(panels: Sequence[MechanismPanel], reference: str) -> Figure:
    """Draw gains over the reference against training losses, on a logarithmic axis.

    Raises:
        ValueError: no panel has a method.
    """
    styles = method_styles(label for panel in panels for label in panel.methods)
    if not styles:
        raise ValueError("panels must have at least one method, got none.")
    with paper_style():
        below = 0.3 + 0.17 * -(-len(styles) // _COLUMNS)
        figure, grid = panel_grid(len(panels), height=2.1, below=below)
        for axes, panel in zip(grid, panels, strict=True):
            _draw_panel(axes, panel, styles, reference)
        handles = [
            axes.plot([], [], ls="", label=style.name, **_marker(style))[0]
            for style in styles.values()
        ]
        figure.legend(
            handles=handles, loc="outside lower center", ncols=_COLUMNS, fontsize=6.5
        )
    return figure


def _marker(style: MethodStyle) -> dict[str, Any]:
    return {
        "color": COLOURS[style.colour],
        "marker": MARKERS[style.marker],
        "markersize": 4.0,
    }


def _draw_panel(
    axes: Axes,
    panel: MechanismPanel,
    styles: Mapping[str, MethodStyle],
    reference: str,
) -> None:
    axes.axhline(0, color="0.4", linewidth=0.8)
    for label, method in panel.methods.items():
        gain, style = method.gain, styles[label]
        colour = COLOURS[style.colour]
        axes.plot([method.loss] * 2, [gain.low, gain.high], color=colour, lw=0.9)
        axes.plot(method.loss, gain.mean, ls="", **_marker(style))
    axes.set_xscale("log")
    axes.minorticks_off()
    losses = [method.loss for method in panel.methods.values()]
    if losses:
        ends = sorted({min(losses), max(losses)})
        axes.set_xticks(ends, [f"{loss:.2g}" for loss in ends])
        axes.margins(x=0.15)
    title = wrapped(panel.title)
    if (correlation := panel.rank_correlation) is not None:
        title += f"\nrank correlation {correlation:+.2f}"
    axes.set_title(title, fontsize=6.5)
    axes.set_xlabel("final training loss", fontsize=6.5)
    axes.set_ylabel(f"gain over {reference}: {panel.metric}", fontsize=6)
    axes.tick_params(labelsize=6)
