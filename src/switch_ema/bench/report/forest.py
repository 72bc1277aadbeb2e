"""Forest plots: every method's difference and interval on an axis with ticks.

All tasks of a report that are judged by the same metric share one axis, so lengths can
be compared between tasks. Drawn in HTML with percentages: needs no script and works at
any width and in print.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from switch_ema.bench.report.figures import PageStyles
from switch_ema.bench.report.numbers import digits_of, fixed
from switch_ema.bench.report.page_style import PageStyle
from switch_ema.bench.report.rows import NEAR_TIES
from switch_ema.bench.stats.paired import Difference, MethodResult
from switch_ema.bench.stats.summary import TaskSummary
from switch_ema.bench.stats.verdicts import Verdict

_MARGIN = 0.04
"""Margin at both ends of the axis, as a share of its length."""
_MOST_TICKS = 4
"""Their labels must fit beside each other on a phone."""


@dataclass(frozen=True)
class ForestRow:
    """One method; positions are percentages of the axis."""

    method: str
    style: PageStyle
    verdict: Verdict
    mean: float
    low: float
    high: float
    difference: str
    interval: str
    """Or a note that there is none, if the differences barely vary."""


@dataclass(frozen=True)
class Forest:
    """All compared methods of a task, largest difference first."""

    rows: list[ForestRow]
    zero: float
    """Position of zero, as a percentage of the axis."""
    ticks: list[tuple[float, str]]
    """Position and label of each tick, zero included."""


def forests(tasks: Sequence[TaskSummary], styles: PageStyles) -> list[Forest]:
    """Lay out the differences in each task's primary metric, one axis per metric."""
    ends: dict[tuple[str, str, bool], list[float]] = {}
    for task in tasks:
        own = ends.setdefault(_scale(task), [0.0])
        own += [end for _, difference in _compared(task) for end in _ends(difference)]
    return [_forest(task, styles, _Axis.over(ends[_scale(task)])) for task in tasks]


def _scale(task: TaskSummary) -> tuple[str, str, bool]:
    """Return the parts of a metric that make values comparable between tasks."""
    metric = task.metrics[0]
    return metric.name, metric.unit, metric.higher_is_better


@dataclass(frozen=True)
class _Axis:
    """An axis of differences."""

    low: float
    high: float

    @classmethod
    def over(cls, values: Iterable[float]) -> "_Axis":
        """Cover all values, with a margin at both ends."""
        values = list(values)
        low, high = min(values), max(values)
        margin = _MARGIN * (high - low)
        return cls(low - margin, high + margin) if high > low else cls(-1.0, 1.0)

    def place(self, value: float) -> float:
        """Return the position of a value, as a percentage."""
        return round(100 * (value - self.low) / (self.high - self.low), 2)

    def ticks(self) -> list[tuple[float, str]]:
        """Return positions and labels at multiples of 1, 2 or 5 times a power of 10.

        >>> [label for _, label in _Axis(-0.7, 12.4).ticks()]
        ['0', '+5', '+10']
        >>> [label for _, label in _Axis(-0.031, 0.012).ticks()]
        ['-0.02', '0']
        """
        power = math.floor(math.log10((self.high - self.low) / _MOST_TICKS))
        steps = [(factor, power + more) for more in (0, 1) for factor in (1, 2, 5)]
        for factor, exponent in steps:
            step = factor * 10.0**exponent
            first, last = math.ceil(self.low / step), math.floor(self.high / step)
            if last - first < _MOST_TICKS:
                break
        digits = max(0, -exponent)
        return [
            (self.place(k * step), fixed(k * step, digits, "+") if k else "0")
            for k in range(first, last + 1)
        ]


def _forest(task: TaskSummary, styles: PageStyles, axis: _Axis) -> Forest:
    metric = task.metrics[0]
    digits = digits_of(metric, task.results[metric.name])
    compared = sorted(_compared(task), key=lambda pair: pair[1].mean, reverse=True)
    rows = []
    for result, difference in compared:
        low, high = _ends(difference)
        interval = f"[{fixed(low, digits)}, {fixed(high, digits)}]"
        rows.append(
            ForestRow(
                method=result.method,
                style=styles[result.method],
                verdict=result.verdict,
                mean=axis.place(difference.mean),
                low=axis.place(low),
                high=axis.place(high),
                difference=fixed(difference.mean, digits, "+"),
                interval=interval if difference.sd else NEAR_TIES,
            )
        )
    return Forest(rows, axis.place(0.0), axis.ticks())


def _compared(task: TaskSummary) -> list[tuple[MethodResult, Difference]]:
    return [
        (result, result.difference)
        for result in task.results[task.metrics[0].name]
        if result.difference and math.isfinite(result.difference.mean)
    ]


def _ends(difference: Difference) -> tuple[float, float]:
    """Return the ends of the interval; without one, the mean twice."""
    if difference.sd and math.isfinite(difference.low + difference.high):
        return difference.low, difference.high
    return difference.mean, difference.mean
