"""Shared parts of figures: plain plotly data, coloured by page.js."""

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from switch_ema.analysis.method_style import display_name
from switch_ema.bench.report.numbers import shortened
from switch_ema.bench.report.page_style import PageStyle
from switch_ema.bench.text import printable

PageStyles = Mapping[str, PageStyle]
"""By method."""
Json = dict[str, Any]
ROW_HEIGHT = 62
HOVER = "%{fullData.name}<br>%{customdata}<extra></extra>"
"""Names stay outside the template, since they may contain %{...}."""


@dataclass(frozen=True)
class Figure:
    """A plotly figure with caption and alternative text."""

    id: str
    caption: str
    alternative: str
    """Alternative text for screen readers."""
    height: int
    traces: list[Json]
    layout: Json
    legend: list[tuple[str, PageStyle]] = field(default_factory=list)
    """Methods that can be hidden and shown."""
    is_cut: bool = False
    """Whether the vertical axis is cropped."""

    def for_plotly(self) -> Json:
        """Return the data for page.js; non-finite numbers become gaps."""
        data = {"id": self.id, "traces": self.traces, "layout": self.layout}
        return {**_finite(data), "height": self.height}


def rows_layout(labels: list[str], title: str) -> Json:
    """Lay out one row per label, with the label above it to fit long names."""
    return {
        "xaxis": {
            "title": {"text": plain(title)},
            "zeroline": True,
            "rangemode": "tozero",
            "nticks": 7,
        },
        "yaxis": {"visible": False, "range": [0.62 - len(labels), 0.62]},
        "annotations": [
            {
                "text": label(name),
                "xref": "paper",
                "x": 0,
                "xanchor": "left",
                "y": 0.22 - row,
                "yanchor": "bottom",
                "showarrow": False,
            }
            for row, name in enumerate(labels)
        ],
    }


def band_and_line(
    method: str,
    style: PageStyle,
    x: Sequence[float] | Sequence[str],
    mean: Sequence[float],
    half: Sequence[float],
    hover: Sequence[str],
    *,
    markers: bool,
) -> list[Json]:
    """Return the band as one closed outline, and the line on top of it.

    Args:
        method: its name.
        style: its colour and dash.
        x: positions of the points.
        mean: the line.
        half: half widths of the band; if empty, no band is drawn.
        hover: hover text of each point.
        markers: whether to draw markers.
    """
    meta = {"colour": style.colour, "method": style.index}
    high = [value + width for value, width in zip(mean, half, strict=True)]
    low = [value - width for value, width in zip(mean, half, strict=True)]
    outline = {
        "x": [*x, *reversed(x)],
        "y": [*high, *reversed(low)],
        "fill": "toself",
        "mode": "lines",
        "line": {"width": 0},
        "hoverinfo": "skip",
        "showlegend": False,
        "meta": {**meta, "role": "band"},
    }
    line = {
        "x": list(x),
        "y": list(mean),
        "name": label(method),
        "mode": "lines+markers" if markers else "lines",
        "line": {"width": 2, "dash": style.plotly_dash},
        "customdata": list(hover),
        "hovertemplate": HOVER,
        "meta": {**meta, "role": "line"},
    }
    return [outline, line] if any(half) else [line]


def range_of(n: list[int]) -> str:
    """Spell a sorted list of counts as "8", or "7 to 8"."""
    if not n:
        return "0"
    return str(n[0]) if n[0] == n[-1] else f"{n[0]} to {n[-1]}"


def label(name: str) -> str:
    """Format a method's name for legend and hover text."""
    return plain(shortened(display_name(name), 44))


def plain(text: str) -> str:
    """Escape a name: plotly interprets a subset of HTML."""
    return html.escape(printable(text), quote=False)


def _finite(value: Any) -> Any:
    """Replace nan and infinity, which JSON does not have, by null."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
