"""The cells of a comparison's table, shared by all output formats."""

from dataclasses import dataclass
from math import isnan

from switch_ema.bench.recipe import Metric
from switch_ema.bench.report.numbers import (
    NONE,
    digits_of,
    fixed,
    mean_and_spread,
    p_value,
    size_of,
)
from switch_ema.bench.stats.paired import FEWEST, Difference, MethodResult, SpeedUp
from switch_ema.bench.stats.summary import TaskSummary
from switch_ema.bench.stats.verdicts import Verdict

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
    verdict: Verdict
    words: str
    """The verdict with the size of what is excluded, or could be detected."""
    speed_up: str
    """Factor, epochs until the baseline's final value, and share of seeds."""
    n: str
    """Seeds that count, with the total if some do not."""


def make_rows(task: TaskSummary, metric: Metric) -> list[Row]:
    """Format one metric's results, in the order of the methods."""
    results = task.results[metric.name]
    digits = digits_of(metric, results)
    seeds = number_of_seeds(task)
    return [_row(result, metric, digits, seeds) for result in results]


def interval_of(difference: Difference, digits: int) -> str:
    """Format the ends of an interval.

    An end that is not zero is never shown as zero.
    """
    low, high = (fixed(end, digits) for end in (difference.low, difference.high))
    return f"[{low}, {high}]"


def qualified(result: MethodResult, metric: Metric) -> str:
    """Return a verdict with what it excludes, or what its seeds could detect."""
    if result.verdict == "undecided":
        found = result.difference
        if (
            found is not None
            and found.n >= FEWEST
            and found.sd
            and found.detectable > 0
        ):
            # n has a column of its own, and cells must fit into narrow terminals.
            return f"undecided (detects {size_of(found.detectable, metric)})"
        return f"undecided ({detects(result.difference, metric)})"
    if result.verdict == "no difference" and result.difference is not None:
        smallest = result.difference.smallest_effect
        return f"no difference larger than {size_of(smallest, metric, up=True)}"
    return result.verdict


def detects(difference: Difference | None, metric: Metric) -> str:
    """Say what the seeds of an undecided difference could have detected."""
    if difference is None:
        return "too few seeds finished"
    n = f"n = {difference.n}"
    if difference.n < FEWEST:
        return f"{n}, a verdict needs {FEWEST}"
    if not difference.sd:
        return f"{n}, {NEAR_TIES}"
    if isnan(difference.detectable):
        return n
    return f"{n} can only detect {size_of(difference.detectable, metric)} or more"


def number_of_seeds(task: TaskSummary) -> int:
    """Count the seeds of a task, including failed ones."""
    runs = [len(own) for curves in task.curves.values() for own in curves.values()]
    return max(runs, default=0)


def baseline_of(results: list[MethodResult]) -> str:
    """Return the method that the others are compared with."""
    return next(r.method for r in results if r.verdict == "baseline")


def _row(result: MethodResult, metric: Metric, digits: int, seeds: int) -> Row:
    difference, n = result.difference, result.last.n
    is_judged = difference is not None and difference.n >= FEWEST
    interval = NONE
    if difference is not None and difference.sd:
        interval = interval_of(difference, digits)
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
        words=qualified(result, metric),
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
