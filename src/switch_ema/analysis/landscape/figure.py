"""Figures of loss landscapes: lines, and planes with trajectories."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, LogNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from switch_ema.analysis.landscape.directions import Floats
from switch_ema.analysis.landscape.surface import LandscapeLine, LandscapeSurface, Notes
from switch_ema.analysis.matplotlib_style import (
    COLUMN,
    MARKERS,
    PAGE,
    line_of,
    paper_style,
)
from switch_ema.analysis.method_style import MethodStyle, display_name, method_styles

_LEVELS = 18
"""Contours of a surface."""
_SHADES = LinearSegmentedColormap.from_list("shades", ["#6389a6", "#b5cad8", "#fbf8ef"])
"""Valleys are darkest, but light enough for the methods' colours."""
_UNITS = {"accuracy": "accuracy (%)"}
_SECOND: Any = (0, (3, 2))
"""Dashes of curves other than the loss."""


def draw_line(line: LandscapeLine) -> Figure:
    """Draw one panel per metric, the loss first, and one curve per label.

    Each curve has a marker at its centre. Non-finite values leave gaps.
    """
    names = sorted(line.values, key=lambda name: name != "loss")
    with paper_style():
        figure = Figure(figsize=(COLUMN, 0.6 + 1.6 * len(names)))
        panels = figure.subplots(len(names), sharex=True, squeeze=False)[:, 0]
        styles = method_styles(line.labels)
        for panel, name in zip(panels, names, strict=True):
            for label, values in zip(line.labels, line.values[name], strict=True):
                _draw_curve(panel, line, values, styles[label])
            panel.set_ylabel(_UNITS.get(name, name))
        panels[-1].set_xlabel("step along the direction")
        _add_legend(figure, styles.values())
    return figure


def draw_lines(
    lines: Mapping[str, LandscapeLine],
    *,
    loss: str = "loss",
    omit: Collection[str] = (),
) -> Figure:
    """Draw one panel per line: loss on the left axis, the other metric on the right.

    The loss is solid, the other dashed; both have the method's colour.

    Args:
        lines: by the title of their panel; at least one.
        loss: name of the values on the left axis.
        omit: names of values that are not drawn.
    """
    if not lines:
        raise ValueError("lines must have at least one line, got none.")
    styles = method_styles(label for line in lines.values() for label in line.labels)
    columns = min(3, len(lines))
    rows = -(-len(lines) // columns)
    with paper_style():
        width = PAGE * max(columns, 2) / 3
        figure = Figure(figsize=(width, 0.7 + 1.9 * rows))
        grid = figure.subplots(rows, columns, squeeze=False)
        for panel in grid.flat[len(lines) :]:
            panel.set_axis_off()
        for panel, (title, line) in zip(grid.flat, lines.items(), strict=False):
            names = [name for name in line.values if name not in omit]
            _draw_twins(panel, line, styles, sorted(names, key=lambda n: n != loss))
            panel.set_title(title)
        kinds = {"loss (left)": "-", "metric (right)": _SECOND}
        keys = [
            Line2D([], [], color="0.5", linestyle=dashes, label=label)
            for label, dashes in kinds.items()
        ]
        _add_legend(figure, styles.values(), keys)
    return figure


def _draw_twins(
    panel: Axes,
    line: LandscapeLine,
    styles: Mapping[str, MethodStyle],
    names: Sequence[str],
) -> None:
    small: dict[str, Any] = {"fontsize": 7}
    for name in names:
        own = panel if name == names[0] else panel.twinx()
        dashes = "-" if own is panel else _SECOND
        for label, values in zip(line.labels, line.values[name], strict=True):
            style = {**_style(styles[label]), "linestyle": dashes, "markersize": 3}
            own.plot(
                line.steps, values, **style, markevery=max(line.steps.size // 4, 1)
            )
        own.set_ylabel(_UNITS.get(name, name), **small)
        own.tick_params(labelsize=6)
        if own is not panel:
            own.grid(False)
            own.spines["right"].set_visible(True)
    panel.set_xlabel("step along the direction", **small)


def _draw_curve(
    panel: Axes, line: LandscapeLine, values: Floats, look: MethodStyle
) -> None:
    style = _style(look)
    middle = int(np.abs(line.steps).argmin())
    # A few markers, for readers who cannot see the colours, one at the centre.
    stride = max(line.steps.size // 8, 1)
    panel.plot(line.steps, values, **{**style, "markevery": (middle % stride, stride)})
    point = {**style, "markersize": 7, "markeredgecolor": "white", "zorder": 4}
    panel.plot(line.steps[middle], values[middle], **point)


def _style(look: MethodStyle) -> dict[str, Any]:
    """Return a solid line, so gaps cannot be mistaken for dashes."""
    marker = MARKERS[look.marker]
    return {**line_of(look), "linestyle": "-", "marker": marker, "markersize": 4}


def draw_surfaces(
    surfaces: LandscapeSurface | Sequence[LandscapeSurface], name: str = "loss"
) -> Figure:
    """Draw surfaces side by side, in the same colours, with their trajectories.

    Loss levels are spaced logarithmically if all values are positive, which shows both
    the bottom of a valley and its walls. A trajectory starts at a hollow marker and
    ends at a filled one; a cross marks the centre.

    Raises:
        ValueError: all points are gaps.
    """
    shown = [surfaces] if isinstance(surfaces, LandscapeSurface) else list(surfaces)
    values = np.concatenate([each.values[name].ravel() for each in shown])
    levels, scale = _levels(values, spread=name == "loss")
    labels = method_styles(label for each in shown for label in each.paths)
    width = min((COLUMN + 0.6) * len(shown), PAGE)
    # The width left by the colour bar and the axis labels.
    height = ((width - 0.8) / len(shown) - 0.6) * max(map(_aspect, shown))
    around = 0.6 + 0.2 * any(each.label for each in shown) + 0.4 * bool(labels)
    with paper_style():
        figure = Figure(figsize=(width, height + around))
        panels = figure.subplots(1, len(shown), squeeze=False)[0]
        for panel, surface in zip(panels, shown, strict=True):
            grid = surface.x, surface.y, np.ma.masked_invalid(surface.values[name])
            filled = panel.contourf(*grid, levels=levels, norm=scale, cmap=_SHADES)
            panel.contour(filled, colors="white", linewidths=0.4)
            _frame(panel, surface)
            for label, path in surface.paths.items():
                _draw_path(panel, path, labels[label])
        bar = figure.colorbar(filled, ax=list(panels), format="%.3g", pad=0.02)
        bar.set_ticks(levels[::3].tolist())
        bar.set_ticks([], minor=True)
        bar.set_label(_UNITS.get(name, name))
        if labels:
            _add_legend(figure, labels.values())
    return figure


def _levels(values: Floats, spread: bool) -> tuple[Floats, LogNorm | None]:
    finite = values[np.isfinite(values)]
    if not finite.size:
        raise ValueError("surfaces must have a finite value, but all points are gaps.")
    low, high = float(finite.min()), float(finite.max())
    if spread and high > low > 0:
        levels = np.geomspace(low, high, _LEVELS)
        scale = LogNorm(low, high)
    else:
        levels = np.linspace(low, high if high > low else low + 1, _LEVELS)
        scale = None
    # Include the ends despite rounding.
    levels[0], levels[-1] = low, max(high, levels[-1])
    return levels, scale


def _frame(panel: Axes, surface: LandscapeSurface) -> None:
    panel.grid(False)
    # Gaps show the hatched background.
    panel.patch.set(hatch="////", facecolor="white", edgecolor="#c8c8c8")
    panel.plot(0, 0, marker="x", color="black", markersize=5, zorder=2)
    panel.set(
        xlim=surface.x[[0, -1]],
        ylim=surface.y[[0, -1]],
        xlabel=_axis(surface.notes, 0),
        ylabel=_axis(surface.notes, 1),
        title=f"centre: {display_name(surface.label)}" if surface.label else "",
    )


def _aspect(surface: LandscapeSurface) -> float:
    """Return the aspect ratio: equal scales unless that gives a narrow strip."""
    return float(np.clip(np.ptp(surface.y) / np.ptp(surface.x), 0.6, 1.5))


def _axis(notes: Notes, index: int) -> str:
    if index < len(notes.explained):
        return f"component {index + 1} ({100 * notes.explained[index]:.1f}%)"
    return f"step along direction {index + 1}"


def _draw_path(panel: Axes, path: Floats, look: MethodStyle) -> None:
    style = _style(look)
    panel.plot(*path.T, color="white", linewidth=2.6, zorder=3)
    panel.plot(*path.T, **{**style, "marker": ".", "markersize": 3}, zorder=4)
    finite = path[np.isfinite(path).all(1)]
    for point, face in ((finite[:1], "white"), (finite[-1:], style["color"])):
        panel.plot(
            *point.T,
            linestyle="",
            marker=style["marker"],
            markersize=6,
            markerfacecolor=face,
            markeredgecolor="white" if face != "white" else style["color"],
            zorder=5,
        )


def _add_legend(
    figure: Figure, styles: Collection[MethodStyle], keys: Sequence[Line2D] = ()
) -> None:
    """Put the legend on top, with as many columns as fit."""
    handles = [Line2D([], [], label=look.name, **_style(look)) for look in styles]
    handles += keys
    inches = 0.55 + 0.075 * max(len(str(handle.get_label())) for handle in handles)
    figure.legend(
        handles=handles,
        loc="outside upper center",
        ncols=max(1, min(len(handles), int(figure.get_figwidth() / inches))),
    )


def caption(landscape: LandscapeLine | LandscapeSurface) -> str:
    """Return a caption: what the figure shows, and its gaps."""
    if isinstance(landscape, LandscapeLine):
        return _line_caption(landscape)
    return _surface_caption(landscape)


def _line_caption(line: LandscapeLine) -> str:
    names = " and ".join(sorted(line.values, key=lambda name: name != "loss"))
    text = (
        f"{names.capitalize()} of {', '.join(line.labels)} at {line.steps.size} points "
        f"from {line.steps[0]:g} to {line.steps[-1]:g} along "
        f"{line.notes.direction or 'a common direction'}{_details(line.notes)}."
    )
    gaps = {label: count for label, count in line.gaps.items() if count}
    if gaps:
        each = ", ".join(
            f"{display_name(label)} {count}" for label, count in gaps.items()
        )
        total = line.steps.size * len(line.labels)
        text += _gap_note(sum(gaps.values()), total, each)
    return text


def _surface_caption(surface: LandscapeSurface) -> str:
    names = " and ".join(sorted(surface.values, key=lambda name: name != "loss"))
    text = (
        f"{names.capitalize()} at {surface.x.size} x {surface.y.size} points around "
        f"{display_name(surface.label) or 'the centre'}, in the plane of "
        f"{surface.notes.direction or 'two directions'}{_details(surface.notes)}."
    )
    if surface.paths:
        shares = ", ".join(
            f"{display_name(label)} {100 * surface.shares[label]:.0f}%"
            for label in surface.paths
        )
        text += (
            " Trajectories are projected; the plane contains this share of their "
            f"squared distances from the centre: {shares}."
        )
    if surface.gaps:
        text += _gap_note(surface.gaps, surface.x.size * surface.y.size, "")
    return text


def _details(notes: Notes) -> str:
    seed = "" if notes.seed is None else f" (seed {notes.seed})"
    return seed + (f", measured on {notes.data}" if notes.data else "")


def _gap_note(count: int, total: int, each: str) -> str:
    who = f" ({each})" if each else ""
    return f" {count} of {total} points are gaps, where the loss is not finite{who}."
