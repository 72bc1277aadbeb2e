"""Figures of the theory, for papers and docs/theory.md."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure
from numpy.typing import NDArray

from switch_ema.analysis.matplotlib_style import (
    COLOURS,
    DASHES,
    MARKERS,
    PAGE,
    colour_of,
    line_of,
    paper_style,
)
from switch_ema.analysis.method_style import method_styles
from switch_ema.theory.checks import Check
from switch_ema.theory.maps import SwitchMap
from switch_ema.theory.periodic import Losses
from switch_ema.theory.propositions import Bounds
from switch_ema.theory.quadratic import Array

_LIMIT = 2.0  # of the map's colours, in powers of two


@dataclass(frozen=True, eq=False)
class Race:
    """Expected losses over time for one interval, with and without the switch."""

    title: str
    every: int
    plain: Losses
    switched: Losses


def draw_checks(rows: Sequence[Check]) -> Figure:
    """Draw closed forms (lines) and simulation (points) against the learning rate.

    Args:
        rows: of one decay and one curvature; each quantity becomes a line.
    """
    with paper_style():
        figure = Figure(figsize=(PAGE, 3.2))
        axes = figure.add_subplot()
        styles = method_styles(row.quantity.removeprefix("V of ") for row in rows)
        for name, look in styles.items():
            chosen = [row for row in rows if row.quantity.removeprefix("V of ") == name]
            rates = [row.setting.rate * row.setting.curvature for row in chosen]
            every = chosen[0].setting.every
            label = name if every is None else f"{name} (T = {every})"
            style = line_of(look)
            axes.plot(rates, [row.exact for row in chosen], label=label, **style)
            axes.errorbar(
                rates,
                [row.simulated for row in chosen],
                [2 * row.standard_error for row in chosen],
                fmt=MARKERS[look.marker],
                color=style["color"],
                markersize=3.5,
                capsize=2,
                linewidth=0.8,
            )
        axes.set_yscale("log")
        axes.set_xlabel(r"learning rate $\times$ curvature")
        axes.set_ylabel("stationary variance")
        axes.set_title("Lines: closed form. Points: simulation ± 2 standard errors")
        figure.legend(loc="outside right center")
    return figure


def draw_races(races: Sequence[Race]) -> Figure:
    """Draw the expected loss over time, one panel per interval."""
    with paper_style():
        figure = Figure(figsize=(PAGE, 2.9))
        panels = figure.subplots(1, len(races), sharey=True, squeeze=False)[0]
        for axes, race in zip(panels, races, strict=True):
            steps = _steps_shown(len(race.plain.live) - 1, race.every)
            curves = {
                "SGD": race.plain.live[steps],
                "EMA": race.plain.shadow[steps],
                "Switch EMA, shadow": race.switched.shadow[steps],
                # At a switch the live weights are the shadow: show the step before.
                "Switch EMA, live before a switch": race.switched.live[
                    steps - (steps % race.every == 0)
                ],
            }
            styles = method_styles(curves)
            for label, losses in curves.items():
                axes.plot(steps, losses, label=label, **line_of(styles[label]))
            axes.set_xscale("log")
            axes.set_yscale("log")
            axes.set_xlabel("steps")
            axes.set_title(race.title)
        panels[0].set_ylabel("expected loss")
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4)
    return figure


def draw_map(data: SwitchMap) -> Figure:
    """Draw where Switch EMA ends below (blue) or above (red) EMA and SGD."""
    with paper_style():
        figure = Figure(figsize=(PAGE, 3.3))
        panels = figure.subplots(1, 2, sharey=True)
        for axes, name, other in zip(
            panels, ("EMA", "SGD"), (data.ema, data.sgd), strict=True
        ):
            mesh = _draw_ratio(axes, data, np.log2(data.switch_ema / other[:, None]))
            axes.set_title(f"Switch EMA against {name}")
        panels[0].set_ylabel(r"learning rate $\times$ curvature")
        bar = figure.colorbar(mesh, ax=list(panels), extend="both", shrink=0.9)
        ticks = np.arange(-_LIMIT, _LIMIT + 1)
        bar.set_ticks(list(ticks), labels=[rf"$\times$ {2**tick:g}" for tick in ticks])
        bar.set_label("expected loss of Switch EMA / of the other")
    return figure


def _draw_ratio(axes: Axes, data: SwitchMap, ratio: Array) -> QuadMesh:
    x, y = data.windows, data.steepness
    mesh = axes.pcolormesh(
        x,
        y,
        np.clip(ratio, -_LIMIT, _LIMIT),
        cmap="RdBu_r",
        vmin=-_LIMIT,
        vmax=_LIMIT,
        shading="nearest",
        rasterized=True,
    )
    axes.contour(x, y, ratio, levels=[0], colors="black", linewidths=1.2)
    axes.axvline(1, color="black", linewidth=0.7, linestyle=":")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(x[0], x[-1])
    axes.set_ylim(y[0], y[-1])
    axes.set_xlabel(r"interval / averaging window, $(1-d)\,T$")
    axes.grid(False)
    return mesh


def draw_bounds(
    rates: Array, found: Sequence[Bounds], gains: Mapping[str, tuple[Array, Array]]
) -> Figure:
    """Draw Proposition 3: bounds and errors against the rate, and sigma against T.

    Args:
        rates: the learning rates of ``found``.
        found: the bounds and the exact errors at each.
        gains: intervals and the measured sigma of each, by the label of a line.
    """
    with paper_style():
        figure = Figure(figsize=(PAGE, 3.2))
        left, right = figure.subplots(1, 2)
        for index, name in enumerate(("SGD", "EMA", "Switch EMA")):
            errors = [one.errors[index] for one in found]
            left.plot(rates, errors, label=f"error of {name}", color=colour_of(name))
        claims = {
            "bound of SGD": [one.sgd for one in found],
            r"bound of EMA, $\alpha=1-d$": [one.ema for one in found],
            r"bound of EMA, $\alpha=d$": [one.ema_tables for one in found],
            "bound of Switch EMA": [one.sema for one in found],
        }
        for (label, values), index in zip(claims.items(), (0, 1, 4, 2), strict=True):
            dashes = (0, (5, 2 + index))
            color = COLOURS[index]
            left.plot(rates, values, label=label, color=color, linestyle=dashes)
        left.set(xscale="log", yscale="log")
        left.set(xlabel="learning rate", ylabel="expected loss, steady")
        left.set_title("Errors (lines) and their bounds (dashes)")
        left.legend(fontsize=6, ncols=2, loc="upper left")
        low, high = left.get_ylim()
        left.set_ylim(low, high * 60)  # room for the legend
        for index, (label, (intervals, sigma)) in enumerate(gains.items(), start=1):
            own = {"color": COLOURS[index], "linestyle": DASHES[index]}
            right.plot(intervals, sigma, label=label, **own)
        right.axhline(1, color="black", linewidth=0.8)
        right.set(
            xscale="log", xlabel="interval T (steps)", ylabel=r"measured $\sigma_T$"
        )
        right.set_ylim(0, 2)  # beyond, the decrease of EMA's loss crosses 0
        right.set_title(r"Gain of the first switch; claimed: $\sigma_T>1$")
        right.legend(title="distance of the start", loc="upper left")
    return figure


def _steps_shown(count: int, every: int, most: int = 300) -> NDArray[np.int64]:
    """Return ends of intervals, about evenly spaced on a logarithmic axis."""
    steps = np.geomspace(1, count, most)
    whole = np.where(steps < every, steps.round(), (steps // every) * every)
    return np.unique(whole.astype(np.int64))
