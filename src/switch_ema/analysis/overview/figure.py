"""Many comparisons in one figure, in multiples of their smallest effects."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import isfinite

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from switch_ema.analysis.gains.figure import Gain
from switch_ema.analysis.matplotlib_style import COLOURS, PAGE, paper_style

_LINE, _AROUND = 0.2, 1.1
"""Heights in inches: of a line, and of the axis and the legend."""
_LINEAR = 2.0
"""The scale is linear up to this multiple, and logarithmic beyond it."""
_PUBLISHED = "0.35"


@dataclass(frozen=True)
class OverviewLine:
    """One comparison, all numbers in multiples of its smallest effect."""

    group: str
    """Lines of one group stand together, below its name."""
    title: str
    gains: Mapping[str, Gain]
    """By contrast, such as "Switch EMA - EMA"."""
    published: float | None = None
    """The gain that the paper prints, if any."""


def draw_overview(lines: Sequence[OverviewLine], published: str) -> Figure:
    """Draw every contrast of every line with its interval.

    Filled points: the interval excludes zero. The band is where differences are smaller
    than the smallest effect.

    Args:
        lines: sorted by group.
        published: the legend's name of the published gains.

    Raises:
        ValueError: there is no line.
    """
    if not lines:
        raise ValueError("lines must not be empty.")
    contrasts = list(dict.fromkeys(name for line in lines for name in line.gains))
    groups = [(name, list(own)) for name, own in groupby(lines, lambda o: o.group)]
    with paper_style():
        count = len(lines) + len(groups)
        figure = Figure(figsize=(PAGE, _AROUND + _LINE * count))
        axes = figure.subplots()
        axes.axvspan(-1, 1, color="0.92", linewidth=0)
        axes.axvline(0, color="0.4", linewidth=0.8)
        ticks, names, row = [], [], 0
        for group, own in groups:
            axes.text(
                *(0.0, row, group.capitalize()),
                transform=axes.get_yaxis_transform(),
                fontsize=7,
                fontweight="bold",
                va="center",
            )
            for line in own:
                row += 1
                ticks.append(row)
                names.append(line.title)
                _draw_line(axes, line, contrasts, row)
            row += 1
        axes.set_yticks(ticks, names, fontsize=6.5)
        axes.set_ylim(count - 0.4, -0.6)
        axes.grid(visible=False, axis="y")
        _finish(axes, contrasts, published)
    return figure


def _draw_line(
    axes: Axes, line: OverviewLine, contrasts: Sequence[str], row: int
) -> None:
    for number, (name, gain) in enumerate(line.gains.items()):
        place = contrasts.index(name)
        colour = COLOURS[_colour(place)]
        at = row + 0.22 * (number - (len(line.gains) - 1) / 2)
        if isfinite(gain.low) and isfinite(gain.high):
            axes.plot([gain.low, gain.high], [at, at], color=colour, linewidth=1.1)
        filling = colour if gain.is_decided else "white"
        axes.plot(gain.mean, at, "os^"[place % 3], color=colour, mfc=filling, ms=3.2)
    if line.published is not None:
        axes.plot(line.published, row, "x", color=_PUBLISHED, ms=4.5, mew=1.2)


def _colour(place: int) -> int:
    return (2, 1, 4)[place % 3]


def _finish(axes: Axes, contrasts: Sequence[str], published: str) -> None:
    axes.set_xscale("symlog", linthresh=_LINEAR, linscale=0.6)
    low, high = axes.get_xlim()
    ends = max(3.0, -low, high)
    axes.set_xlim(-ends, ends)
    marks = [mark for mark in (1, 2, 5, 10, 20, 50, 100) if mark <= ends]
    ticks = [*(-mark for mark in reversed(marks)), 0, *marks]
    axes.set_xticks(ticks, [f"{tick:+d}" if tick else "0" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel(
        "difference, in multiples of the smallest effect of interest; right is better",
        fontsize=7,
    )
    axes.tick_params(axis="x", labelsize=6.5)
    for place, name in enumerate(contrasts):
        colour = COLOURS[_colour(place)]
        axes.plot([], [], "os^"[place % 3], ls="-", color=colour, ms=4, label=name)
    axes.plot([], [], "x", ls="", color=_PUBLISHED, ms=5, label=published)
    axes.legend(
        loc="lower center",
        bbox_to_anchor=(0.35, 1.0),
        ncols=len(contrasts) + 1,
        fontsize=7,
    )
