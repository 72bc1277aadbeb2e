"""Reliability diagrams: accuracy against confidence."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from switch_ema.analysis.calibration.measures import Bin, calibration_error
from switch_ema.analysis.matplotlib_style import COLUMN, MARKERS, line_of, paper_style
from switch_ema.analysis.method_style import MethodStyle, method_styles


def draw_reliability(methods: Mapping[str, Sequence[Bin]]) -> Figure:
    """Draw accuracy against confidence, and a histogram of the confidences below.

    Args:
        methods: Bins of equal width by name, from ``calibration.reliability``; the
            first is the baseline. Up to four are legible. Bars are 95% intervals.
    """
    if not methods:
        raise ValueError("methods must have at least one method, got none.")
    with paper_style():
        figure = Figure(figsize=(COLUMN, 1.3 * COLUMN + 0.17 * len(methods)))
        top, bottom = figure.subplots(
            2, 1, sharex=True, gridspec_kw={"height_ratios": [3, 1]}
        )
        top.plot([0, 1], [0, 1], color="0.6", linewidth=1, zorder=1)
        for name, style in method_styles(methods).items():
            _accuracy(top, style, methods[name])
            _shares(bottom, style, methods[name])
        top.set(ylabel="accuracy", ylim=(-0.02, 1.02))
        bottom.set(
            xlabel="confidence",
            ylabel="examples (%)",
            xlim=(-0.02, 1.02),
            ylim=(0, None),
        )
        figure.legend(loc="outside lower center", handlelength=3.5)
        return figure


def _accuracy(axes: Axes, style: MethodStyle, bins: Sequence[Bin]) -> None:
    filled = [b for b in bins if b.count]
    accuracy = [b.accuracy for b in filled]
    axes.errorbar(
        [b.confidence for b in filled],
        accuracy,
        # Rounding may put an end of the interval slightly on the wrong side.
        yerr=[
            [max(b.accuracy - b.accuracy_low, 0) for b in filled],
            [max(b.accuracy_high - b.accuracy, 0) for b in filled],
        ],
        label=f"{style.name} (ECE {100 * calibration_error(tuple(bins)):.1f}%)",
        marker=MARKERS[style.marker],
        markersize=3.5,
        elinewidth=0.7,
        capsize=1.5,
        **line_of(style),
    )


def _shares(axes: Axes, style: MethodStyle, bins: Sequence[Bin]) -> None:
    total = sum(b.count for b in bins)
    axes.stairs(
        [100 * b.count / total for b in bins],
        [bins[0].low, *(b.high for b in bins)],
        linewidth=1.2,
        **line_of(style),
    )
