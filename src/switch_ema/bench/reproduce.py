"""Tables of the paper, trained row by row and collected from what is stored."""

import os
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from rich.console import Console
from rich.markup import escape

from switch_ema.bench.compare import (
    CONFIG,
    RESULTS,
    RunOptions,
    open_run,
    run_comparison,
)
from switch_ema.bench.config import CompareConfig
from switch_ema.bench.executors import train_cells
from switch_ema.bench.paper import TABLES, PaperRow, PaperTable
from switch_ema.bench.paper.presets import RowSettings, row_config
from switch_ema.bench.plan import Cell, make_plan
from switch_ema.bench.results import Results
from switch_ema.bench.spec import UsageError
from switch_ema.bench.summarize import FINISHED, summarize
from switch_ema.bench.summary import TaskSummary
from switch_ema.bench.train import Place


@dataclass(frozen=True, kw_only=True)
class RowPlan:
    """One row of a table, and the comparison that trains it."""

    table: PaperTable
    row: PaperRow
    config: CompareConfig
    folder: Path
    """Where its results are, or will be."""


@dataclass(frozen=True, kw_only=True)
class ReproducedRow:
    """One row of a table, and what we have found for it so far."""

    row: PaperRow
    task: TaskSummary
    config: CompareConfig


def select_tables(names: Sequence[str]) -> list[PaperTable]:
    """Look tables up by their names; all of them if none is given."""
    unknown = [name for name in names if name not in TABLES]
    if unknown:
        raise UsageError(
            f"unknown table {unknown[0]!r}; known are {', '.join(TABLES)}."
        )
    return [TABLES[name] for name in dict.fromkeys(names)] or list(TABLES.values())


def select_rows(
    tables: Sequence[PaperTable], patterns: Sequence[str]
) -> list[tuple[PaperTable, PaperRow]]:
    """Find the rows that one of the patterns matches; all if there is no pattern."""
    rows = [(table, row) for table in tables for row in table.rows]
    for pattern in patterns:
        if not any(fnmatchcase(row.name, pattern) for _, row in rows):
            known = ", ".join(dict.fromkeys(row.name for _, row in rows))
            names = " and ".join(table.name for table in tables)
            raise UsageError(
                f"no row of {names} is called {pattern!r}; there are {known}."
            )
    return [
        (table, row)
        for table, row in rows
        if not patterns or any(fnmatchcase(row.name, p) for p in patterns)
    ]


def plan_rows(
    tables: Sequence[PaperTable],
    patterns: Sequence[str],
    settings: RowSettings,
    out: Path,
) -> list[RowPlan]:
    """Plan one comparison for each row, and refuse folders that hold another one."""
    plans = [
        RowPlan(
            table=table,
            row=row,
            config=row_config(row, settings),
            folder=table_folder(out, table, settings.scale) / row.name,
        )
        for table, row in select_rows(tables, patterns)
    ]
    for plan in plans:
        _refuse_other_settings(plan)
    return plans


def table_folder(out: Path, table: PaperTable, scale: str) -> Path:
    """Return the folder in which the rows of a table have theirs."""
    return out / f"reproduce-{table.name}{'' if scale == 'small' else f'-{scale}'}"


def _refuse_other_settings(plan: RowPlan) -> None:
    stored = plan.folder / CONFIG
    if stored.is_file() and stored.read_text() != plan.config.to_json():
        raise UsageError(
            f"{plan.folder} holds this row with other settings, such as the number of "
            "seeds; choose another --out, or delete it."
        )


def run_rows(plans: Sequence[RowPlan], options: RunOptions, console: Console) -> None:
    """Train what is left of each row; one that fails does not stop the others."""
    failed = []
    for number, plan in enumerate(plans, start=1):
        title = f"{number} of {len(plans)}: {plan.table.name}, {plan.row.title}"
        console.rule(escape(title), align="left")
        place = replace(options, out=plan.folder.parent, name=plan.folder.name)
        try:
            run_comparison(plan.config, place, console)
        except UsageError as error:
            console.print(escape(str(error)), style="red")
            failed.append(plan.row.name)
    if failed:
        raise UsageError(
            f"{len(failed)} of {len(plans)} rows could not be trained "
            f"({', '.join(failed)}); the reasons are above."
        )


def collect_rows(table: PaperTable, out: Path, scale: str) -> list[ReproducedRow]:
    """Read what is stored of a table; rows without a finished baseline are left out."""
    found = []
    for row in table.rows:
        folder = table_folder(out, table, scale) / row.name
        if not (folder / RESULTS).is_file():
            continue
        config, results = open_run(folder)
        with closing(results):
            for task in summarize(config, results, row.name).tasks:
                found.append(ReproducedRow(row=row, task=task, config=config))
    return found


def estimate_seconds(plan: RowPlan, options: RunOptions) -> float:
    """Estimate how long the rest of a row takes.

    A training of a kind that has finished before takes as long as it did then. For the
    others one epoch of the first is trained and thrown away.
    """
    took, todo = _stored_seconds(plan)
    cores = 1 if torch.cuda.is_available() else os.cpu_count() or 1
    jobs = min(options.jobs or cores, len(todo))
    new = [cell for cell in todo if cell.methods not in took]
    setup = 0.0
    if new:
        epoch = _measure_epoch(new[0], jobs, options.device)
        took |= {cell.methods: epoch.seconds(cell) for cell in new}
        setup = epoch.setup
    return setup + sum(took[cell.methods] for cell in todo) / max(jobs, 1)


def _stored_seconds(plan: RowPlan) -> tuple[dict[tuple[str, ...], float], list[Cell]]:
    """Return how long trainings took, by their methods, and which are left to do."""
    cells = make_plan(plan.config)
    if not (plan.folder / RESULTS).is_file():
        return {}, cells
    with closing(Results(plan.folder / RESULTS)) as results:
        statuses = results.statuses()
        done = [cell for cell in cells if statuses.get(cell.id) in FINISHED]
        took: dict[tuple[str, ...], float] = {}
        for cell in done:
            cost = results.cell(cell)
            took[cell.methods] = sum(
                float(cost[key]) for key in ("train_seconds", "evaluate_seconds")
            )
    return took, [cell for cell in cells if cell not in done]


@dataclass(frozen=True)
class _Epoch:
    """What one epoch took, in seconds."""

    setup: float
    """Imports and data; counted once, since a process keeps most of it."""
    train: float
    evaluate: float
    """Of one method."""

    def seconds(self, cell: Cell) -> float:
        each = self.train + self.evaluate * len(cell.methods)
        return cell.recipe.epochs * each


def _measure_epoch(cell: Cell, jobs: int, device: str | None) -> _Epoch:
    """Train one epoch of a cell with the threads that it will have."""
    short = replace(cell, recipe=replace(cell.recipe, epochs=1, warmup_epochs=0))
    threads = torch.get_num_threads()
    if jobs > 1:  # one training alone stays in this process, with all its threads
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // jobs))
    started = time.perf_counter()
    try:
        with TemporaryDirectory() as folder:
            place = Place(Path(folder), device)
            [(_, result)] = train_cells([short], lambda _: place, 1, lambda *_: None)
    finally:
        torch.set_num_threads(threads)
    if result.status == "failed":
        raise UsageError(f"{cell}: {result.message}")
    busy = result.train_seconds + result.evaluate_seconds
    return _Epoch(
        setup=time.perf_counter() - started - busy,
        train=result.train_seconds,
        evaluate=result.evaluate_seconds / len(cell.methods),
    )
