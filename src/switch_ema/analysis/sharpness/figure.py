"""Sharpness of several methods: the Hessian's spectrum, and the loss under noise."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from switch_ema.analysis.matplotlib_style import MARKERS, PAGE, line_of, paper_style
from switch_ema.analysis.method_style import MethodStyle, method_styles
from switch_ema.analysis.sharpness.measures import NoiseCurve

_STRENGTH = {
    "none": r"standard deviation $\sigma$ of the noise on all weights",
    "parameter": r"noise $\sigma$, as a share of each weight",
    "filter": r"noise $\sigma$, as a share of each filter's weights",
}


def draw_sharpness(
    eigenvalues: Mapping[str, Sequence[float]], curves: Mapping[str, NoiseCurve]
) -> Figure:
    """Draw the largest eigenvalues and the loss increase under noise, side by side.

    Args:
        eigenvalues: Eigenvalues of the Hessian, in descending order, by method; the
            first is the baseline.
        curves: Noise curves of the same methods, in the same order. Bands are one
            standard error.
    """
    if not eigenvalues or list(eigenvalues) != list(curves):
        raise ValueError(
            "eigenvalues and curves must have the same methods in the same order, got "
            f"{list(eigenvalues)} and {list(curves)}."
        )
    scales = {curve.scale for curve in curves.values()}
    if len(scales) > 1:
        raise ValueError(f"all curves must have the same scale, got {sorted(scales)}.")
    with paper_style():
        figure = Figure(figsize=(PAGE, 0.4 * PAGE))
        left, right = figure.subplots(1, 2)
        for name, style in method_styles(eigenvalues).items():
            _spectrum(left, style, eigenvalues[name])
            _increase(right, style, curves[name])
        longest = max(len(values) for values in eigenvalues.values())
        left.set(
            xlabel="rank",
            ylabel="eigenvalue of the Hessian",
            xticks=range(1, longest + 1),
        )
        left.axhline(0, color="0.6", linewidth=0.7, zorder=1)
        right.set(xlabel=_STRENGTH[scales.pop()], ylabel="loss increase")
        right.axhline(0, color="0.6", linewidth=0.7, zorder=1)
        figure.legend(
            loc="outside lower center", ncols=min(len(curves), 4), handlelength=3.5
        )
        return figure


def _spectrum(axes: Axes, style: MethodStyle, values: Sequence[float]) -> None:
    axes.plot(
        range(1, len(values) + 1),
        values,
        label=style.name,
        marker=MARKERS[style.marker],
        markersize=4,
        **line_of(style),
    )


def _increase(axes: Axes, style: MethodStyle, curve: NoiseCurve) -> None:
    mean = np.array([increase.mean for increase in curve.increases])
    error = np.array([increase.error for increase in curve.increases])
    axes.plot(curve.sigmas, mean, **line_of(style))
    axes.fill_between(
        curve.sigmas,
        mean - error,
        mean + error,
        color=line_of(style)["color"],
        alpha=0.2,
        linewidth=0,
    )
