"""The forest plot: every method's difference and interval on one axis with zero.

Drawn in HTML with percentages: it needs no script and works at any width and in print.
"""

import math
from dataclasses import dataclass

from switch_ema.bench.report.figures import PageStyles
from switch_ema.bench.report.numbers import digits_of, fixed
from switch_ema.bench.report.page_style import PageStyle
from switch_ema.bench.report.rows import NEAR_TIES
from switch_ema.bench.stats.paired import Difference
from switch_ema.bench.stats.summary import TaskSummary

_MARGIN = 0.04
"""Margin at both ends of the axis, as a share of its length."""


@dataclass(frozen=True)
class ForestRow:
    """One method; positions are percentages of the axis."""

    method: str
    style: PageStyle
    verdict: str
    mean: float
    low: float
    high: float
    difference: str
    interval: str
    """Or a note that there is none, if the differences barely vary."""


@dataclass(frozen=True)
class Forest:
    """All compared methods, largest difference first."""

    rows: list[ForestRow]
    zero: float
    """Position of zero, as a percentage of the axis."""


def forest(task: TaskSummary, styles: PageStyles) -> Forest:
    """Lay out the differences in the primary metric."""
    metric = task.metrics[0]
    results = task.results[metric.name]
    compared = [
        (result, result.difference)
        for result in results
        if result.difference and math.isfinite(result.difference.mean)
    ]
    compared.sort(key=lambda pair: pair[1].mean, reverse=True)
    ends = [0.0, *(end for _, difference in compared for end in _ends(difference))]
    low, high = min(ends), max(ends)
    length = (high - low) or 1.0
    low, length = low - _MARGIN * length, (1 + 2 * _MARGIN) * length

    def place(value: float) -> float:
        return round(100 * (value - low) / length, 2)

    digits = digits_of(metric, results)
    rows = []
    for result, difference in compared:
        first, last = _ends(difference)
        interval = f"[{fixed(first, digits)}, {fixed(last, digits)}]"
        rows.append(
            ForestRow(
                method=result.method,
                style=styles[result.method],
                verdict=result.verdict,
                mean=place(difference.mean),
                low=place(first),
                high=place(last),
                difference=fixed(difference.mean, digits, "+"),
                interval=interval if difference.sd else NEAR_TIES,
            )
        )
    return Forest(rows, place(0.0))


def _ends(difference: Difference) -> tuple[float, float]:
    """Return the ends of the interval; without one, the mean twice."""
    if difference.sd and math.isfinite(difference.low + difference.high):
        return difference.low, difference.high
    return difference.mean, difference.mean
