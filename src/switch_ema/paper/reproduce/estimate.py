"""Estimates the duration of rows: measured, declared, or from stored times."""

import json
import time
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from switch_ema.bench.errors import UsageError
from switch_ema.bench.execute.local import train_or_explain
from switch_ema.bench.execute.options import RunOptions
from switch_ema.bench.execute.placement import default_jobs, found_gpus
from switch_ema.bench.plan.cells import Cell, make_plan
from switch_ema.bench.plan.task_snapshot import facts_of
from switch_ema.bench.results.folder import RESULTS, WORKERS
from switch_ema.bench.results.store import FINISHED, TRAINED, Results
from switch_ema.bench.train.context import RunContext
from switch_ema.paper.reproduce.plan import RowPlan
from switch_ema.paper.reproduce.presets import RowSettings, row_config
from switch_ema.paper.reproduce.row_seconds import SECONDS
from switch_ema.paper.tables.table import PaperRow


def measure_row_time(plan: RowPlan, options: RunOptions) -> float:
    """Estimate the remaining time of a row, by training one epoch if necessary.

    Finished trainings of the same methods provide their times. For the others, one
    epoch of the first is trained and discarded.
    """
    took, todo = _stored_seconds(plan)
    jobs = min(jobs_at_once(options), len(todo))
    new = [cell for cell in todo if _kind(cell) not in took]
    setup = 0.0
    if new:
        epoch = _measure_epoch(new[0], options.device)
        took |= {_kind(cell): epoch.seconds(cell) for cell in new}
        setup = epoch.setup
    return setup + sum(took[_kind(cell)] for cell in todo) / max(jobs, 1)


def declared_row_time(
    plan: RowPlan, settings: RowSettings, options: RunOptions
) -> float:
    """Estimate the remaining time of a row without training.

    Finished trainings of the same methods provide their times; the others take their
    share of the row's declared time.
    """
    took, todo = _stored_seconds(plan)
    declared = SECONDS[plan.row.home or plan.table.name][plan.row.name]
    whole = declared * row_length(plan.row, settings) * plan.config.seeds
    share = whole / len(make_plan(plan.config))
    jobs = min(jobs_at_once(options), len(todo))
    return sum(took.get(_kind(cell), share) for cell in todo) / max(jobs, 1)


def row_length(row: PaperRow, settings: RowSettings) -> float:
    """Return the length of trainings relative to the declared ones."""
    if settings.epochs is None:
        return 1.0
    config = row_config(row, RowSettings())
    usual = [config.epochs or facts_of(task).recipe.epochs for task in config.tasks]
    return settings.epochs * len(usual) / sum(usual)


def jobs_at_once(options: RunOptions) -> int:
    """Return the number of concurrent trainings."""
    if options.executor == "inline":
        return 1
    gpus = found_gpus(options.device)
    return options.jobs or default_jobs(gpus, options.workers_per_training)


def measure_whole_row(plan: RowPlan, device: str | None) -> float:
    """Measure one epoch; extrapolate to the whole row, one training at a time."""
    cells = make_plan(plan.config)
    epoch = _measure_epoch(cells[0], device)
    return sum(epoch.seconds(cell) for cell in cells)


def gpu_hours(plan: RowPlan) -> float | None:
    """Return the remaining GPU-hours of a row; None if unknown.

    Known from finished GPU trainings of the same methods: the duration times the number
    of GPUs.
    """
    took, todo = _stored_seconds(plan)
    if any(_kind(cell) not in took for cell in todo):
        return None
    with closing(Results(plan.folder / RESULTS)) as results:
        notes = results.meta()
    on_gpus = all(
        "Device" in json.loads(notes.get(f"{TRAINED} of {task}", "{}"))
        for task in plan.config.tasks
    )
    if not on_gpus:
        return None
    gpus = int(notes.get(WORKERS, 1))
    return sum(took[_kind(cell)] for cell in todo) * gpus / 3600


_Kind = tuple[str, tuple[str, ...], int]


def _kind(cell: Cell) -> _Kind:
    """Return a key that is equal for cells differing only in which seeds they have."""
    return cell.task, cell.methods, len(cell.seeds)


def _stored_seconds(plan: RowPlan) -> tuple[dict[_Kind, float], list[Cell]]:
    """Return the times of finished trainings by kind, and the remaining cells."""
    cells = make_plan(plan.config)
    if not (plan.folder / RESULTS).is_file():
        return {}, cells
    with closing(Results(plan.folder / RESULTS)) as results:
        statuses = results.statuses()
        done = [cell for cell in cells if statuses.get(cell.id) in FINISHED]
        took: dict[_Kind, float] = {}
        for cell in done:
            cost = results.cell(cell)
            took[_kind(cell)] = sum(
                float(cost[key]) for key in ("train_seconds", "evaluate_seconds")
            )
    return took, [cell for cell in cells if cell not in done]


@dataclass(frozen=True)
class _Epoch:
    """Duration of one epoch, in seconds."""

    setup: float
    """Imports and data; counted once, because processes reuse most of it."""
    train: float
    evaluate: float
    """One evaluation of one method."""

    def seconds(self, cell: Cell) -> float:
        evaluations = cell.recipe.evaluations * len(cell.methods)
        return cell.recipe.epochs * self.train + evaluations * self.evaluate


def _measure_epoch(cell: Cell, device: str | None) -> _Epoch:
    """Train one epoch of a cell with its final number of threads."""
    short = replace(cell, recipe=replace(cell.recipe, epochs=1, warmup_epochs=0))
    started = time.perf_counter()
    with TemporaryDirectory() as folder:
        context = RunContext(Path(folder), device)
        result = train_or_explain(short, context, lambda epoch, latest: None)
    if result.status == "failed":
        raise UsageError(f"{cell}: {result.message}")
    busy = result.train_seconds + result.evaluate_seconds
    return _Epoch(
        setup=time.perf_counter() - started - busy,
        train=result.train_seconds,
        evaluate=result.evaluate_seconds / len(cell.methods),
    )
