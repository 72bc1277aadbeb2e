"""How figures for papers look: fonts, colours that everybody can tell apart, files."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from switch_ema._files import write_atomically

COLOURS = ("#22262b", "#1f5a8c", "#cc7420", "#0a9f6d", "#e84cc4", "#7a2fe0", "#664c19")
"""The first is the baseline's. The same as in the report's page."""
DASHES: tuple[Any, ...] = ("-", (0, (7, 3)), (0, (2, 2)), (0, (8, 2, 2, 2)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
COLUMN, PAGE = 3.5, 7.2
"""Widths in inches: one column and the whole page of a two-column paper."""

_STYLE: Any = {
    "axes.grid": True,
    "axes.labelsize": 9,
    "axes.linewidth": 0.7,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 9,
    "figure.constrained_layout.use": True,
    "font.family": "DejaVu Sans",
    "font.size": 8,
    "grid.alpha": 0.35,
    "grid.linewidth": 0.5,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "lines.linewidth": 1.5,
    "savefig.dpi": 200,
    # The same figure gives the same file, whenever it is drawn.
    "svg.hashsalt": "switch-ema",
    "svg.fonttype": "path",
}


@contextmanager
def paper_style() -> Iterator[None]:
    """Draw in the common style inside, without changing matplotlib's settings."""
    with mpl.rc_context(_STYLE):
        yield


def look(index: int) -> dict[str, Any]:
    """Return colour and dash of the method at this place, as arguments of ``plot``."""
    rounds, place = divmod(index, len(COLOURS))
    return {
        "color": COLOURS[place],
        "linestyle": DASHES[(index + rounds) % len(DASHES)],
    }


def save_figure(figure: Figure, folder: Path, name: str) -> tuple[Path, Path]:
    """Write a figure as PNG and as SVG; return both paths."""
    folder.mkdir(parents=True, exist_ok=True)
    png, svg = folder / f"{name}.png", folder / f"{name}.svg"
    with paper_style():
        for path, no_date in ((png, {"Software": None}), (svg, {"Date": None})):
            save = partial(figure.savefig, format=path.suffix[1:], metadata=no_date)
            write_atomically(path, save)
    return png, svg
