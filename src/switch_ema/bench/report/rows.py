"""The cells of a comparison's table, shared by all output formats."""

from dataclasses import dataclass

from switch_ema.bench.recipe import Metric
from switch_ema.bench.report.numbers import (
    NONE,
    digits_of,
    fixed,
    mean_and_spread,
    p_value,
)
from switch_ema.bench.stats.paired import MethodResult, SpeedUp
from switch_ema.bench.stats.summary import TaskSummary

NEAR_TIES = "near ties"
"""Replaces the interval if the metric cannot resolve the differences between seeds."""


@dataclass(frozen=True)
class Row:
    """One method's cells as text, without units."""

    method: str
    last: str
    best: str
    difference: str
    """Signed; positive is better."""
    interval: str
    p: str
    verdict: str
    speed_up: str
    """Factor, epochs until the baseline's final value, and share of seeds."""
    n: str
    """Seeds that count, with the total if some do not."""


def make_rows(task: TaskSummary, metric: Metric) -> list[Row]:
    """Format one metric's results, in the order of the methods."""
    results = task.results[metric.name]
    digits = digits_of(metric, results)
    seeds = number_of_seeds(task)
    return [_row(result, digits, seeds) for result in results]


def number_of_seeds(task: TaskSummary) -> int:
    """Count the seeds of a task, including failed ones."""
    seeds: set[int] = set()
    for curves in task.curves.values():
        for runs in curves.values():
            seeds |= runs.keys()
    return len(seeds)


def baseline_of(results: list[MethodResult]) -> str:
    """Return the method that the others are compared with."""
    return next(r.method for r in results if r.verdict == "baseline")


def _row(result: MethodResult, digits: int, seeds: int) -> Row:
    difference, n = result.difference, result.last.n
    is_judged = result.verdict != "too few seeds"
    interval = NONE
    if difference is not None and difference.sd:
        low, high = (fixed(v, digits) for v in (difference.low, difference.high))
        interval = f"[{low}, {high}]"
    elif difference is not None and is_judged:
        interval = NEAR_TIES
    return Row(
        method=result.method,
        last=mean_and_spread(result.last, digits),
        best=mean_and_spread(result.best, digits),
        difference=fixed(difference.mean, digits, "+") if difference else NONE,
        interval=interval,
        p=p_value(difference.p_holm) if difference and is_judged else NONE,
        verdict=result.verdict,
        speed_up=_speed_up(result.speed_up),
        n=str(n) if n >= seeds else f"{n}/{seeds}",
    )


def _speed_up(speed_up: SpeedUp | None) -> str:
    """Format a speed-up; seeds that never reach it are counted, not averaged.

    >>> _speed_up(SpeedUp(reached=7, n=8, epochs=19.0, factor=1.29))
    '1.3x (19) 7/8'
    """
    if speed_up is None:
        return NONE
    if speed_up.epochs is None or speed_up.factor is None:
        return "never"
    text = f"{speed_up.factor:.1f}x ({speed_up.epochs:g})"
    if speed_up.reached == speed_up.n:
        return text
    return f"{text} {speed_up.reached}/{speed_up.n}"
