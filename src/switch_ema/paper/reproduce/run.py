"""Trains rows of the paper's tables one after the other."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from switch_ema.bench.compare import Watcher, run_comparison
from switch_ema.bench.errors import UsageError
from switch_ema.bench.execute.options import RunOptions
from switch_ema.bench.report.numbers import fixed, mean_and_spread
from switch_ema.bench.stats.summary import ComparisonSummary
from switch_ema.paper.reproduce.plan import RowPlan


@dataclass(frozen=True, kw_only=True)
class RowOutcome:
    """Outcome of training a row."""

    plan: RowPlan
    seconds: float
    summary: ComparisonSummary | None = None
    error: UsageError | None = None
    """Why training failed, completely or in part."""


def run_rows(
    plans: Sequence[RowPlan],
    options: RunOptions,
    watcher_of: Callable[[int, RowPlan], Watcher] = lambda number, plan: Watcher(),
) -> Iterator[RowOutcome]:
    """Train the remaining cells of each row; a failed row does not stop the others.

    Args:
        plans: the rows.
        options: how to run them.
        watcher_of: creates the watcher of a row from its number (from 1) and its plan.
    """
    for number, plan in enumerate(plans, start=1):
        place = replace(
            options,
            out=plan.folder.parent,
            name=plan.folder.name,
            keep=options.keep or ("last" if plan.scale == "paper" else "none"),
            keep_checkpoints=plan.table.keeps,
            readers=options.readers if plan.readers is None else plan.readers,
        )
        started = time.perf_counter()
        summary, error = None, None
        try:
            run = run_comparison(
                plan.config,
                place,
                watcher=watcher_of(number, plan),
                keeps_trajectory=plan.table.keeps_trajectory,
            )
            summary = run.summary
            if run.error is not None:
                raise run.error
        except UsageError as refused:
            error = refused
        seconds = time.perf_counter() - started
        yield RowOutcome(plan=plan, seconds=seconds, summary=summary, error=error)


def row_line(plan: RowPlan, summary: ComparisonSummary) -> str:
    """Summarize the methods' values of a row in one line."""
    parts = []
    for task in summary.tasks:
        metric = task.metrics[0]
        digits = 1 if metric.decimals is None else metric.decimals
        for result in task.results[metric.name]:
            shown = (
                mean_and_spread(result.last, digits)
                if result.difference is None
                else fixed(result.difference.mean, digits, "+")
            )
            parts.append(f"{result.method} {shown}")
    seeds = {(plan.config.seeds, *task.looks)[-1] for task in summary.tasks}
    n = " and ".join(map(str, sorted(seeds))) or plan.config.seeds
    return f"{plan.row.name}: {', '.join(parts)}, n = {n}"
