"""Style of figures for papers: fonts, colour-blind-safe colours, files."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from switch_ema._files import write_atomically
from switch_ema.analysis.method_style import MethodStyle, method_styles

COLOURS = (
    *("#22262b", "#1f5a8c", "#cc7420", "#0a9f6d", "#e84cc4"),
    *("#7a2fe0", "#664c19", "#b3202c", "#00808a", "#7d7a00"),
)
"""Assigned by ``analysis.method_style``; pages use the same colours."""
DASHES: tuple[Any, ...] = (
    *("-", (0, (7, 3)), (0, (2, 2)), (0, (8, 2, 2, 2))),
    *((0, (4, 1)), (0, (10, 3))),
)
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
COLUMN, PAGE = 3.5, 7.2
"""Widths in inches: one column and the whole page of a two-column paper."""
_PANELS = 4
"""Maximum panels per row."""

_STYLE: Any = {
    "axes.grid": True,
    "axes.labelsize": 9,
    "axes.linewidth": 0.7,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 9,
    "figure.constrained_layout.use": True,
    "font.family": ["DejaVu Sans", "sans-serif"],
    "font.size": 8,
    "grid.alpha": 0.35,
    "grid.linewidth": 0.5,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "lines.linewidth": 1.5,
    "savefig.dpi": 200,
    # Searchable, editable text instead of outlines.
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
    # Reproducible files: the same figure gives the same bytes.
    "svg.hashsalt": "switch-ema",
}


@contextmanager
def paper_style() -> Iterator[None]:
    """Use the common style inside the block; matplotlib's settings are restored."""
    with mpl.rc_context(_STYLE):
        yield


def line_of(look: MethodStyle) -> dict[str, Any]:
    """Return colour and dash of a method, as arguments of ``plot``."""
    return {"color": COLOURS[look.colour], "linestyle": DASHES[look.dash]}


def colour_of(method: str) -> str:
    """Return the colour of a method."""
    return COLOURS[method_styles([method])[method].colour]


def panel_grid(
    count: int, *, height: float, below: float = 0.0, share_y: bool = False
) -> tuple[Figure, list[Axes]]:
    """Make panels of the same size, at most four in a row, over the width of a page.

    Args:
        count: number of panels.
        height: of a row, in inches.
        below: extra height below the panels, in inches.
        share_y: whether all share one vertical axis, on the left.
    """
    rows = -(-count // _PANELS)
    columns = -(-count // rows)
    size = (PAGE * max(columns, 2) / _PANELS, below + height * rows)
    figure = Figure(figsize=size)
    grid = figure.subplots(rows, columns, squeeze=False, sharey=share_y)
    for axes in grid.flat[count:]:
        axes.set_axis_off()
    return figure, list(grid.flat[:count])


def wrapped(title: str, width: int = 26) -> str:
    """Break a title into lines, so titles of neighbouring panels do not touch.

    >>> wrapped("classification:network=deit-s,scale=fitted").splitlines()
    ['classification:', 'network=deit-s,', 'scale=fitted']
    """
    words = re.split(r"(?<=[,:])|(?<=\s)", title)
    lines = [""]
    for word in words:
        if lines[-1] and len(lines[-1] + word.rstrip()) > width:
            lines.append("")
        lines[-1] += word
    return "\n".join(line.strip() for line in lines)


def save_figure(figure: Figure, folder: Path, name: str) -> tuple[Path, ...]:
    """Write a figure as PNG, SVG and PDF; return the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    without_date: dict[str, dict[str, Any]] = {
        "png": {"Software": None},
        "svg": {"Date": None},
        "pdf": {"CreationDate": None, "Producer": None, "Creator": None},
    }
    paths = []
    with paper_style():
        for kind, metadata in without_date.items():
            paths.append(folder / f"{name}.{kind}")
            save = partial(figure.savefig, format=kind, metadata=metadata)
            write_atomically(paths[-1], save)
    return tuple(paths)
