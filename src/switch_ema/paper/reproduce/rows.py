"""Tables of the paper, trained row by row and collected from what is stored."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

from switch_ema.bench.compare import Watcher, run_comparison
from switch_ema.bench.errors import UsageError
from switch_ema.bench.execute.options import RunOptions
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.report.numbers import fixed, mean_and_spread
from switch_ema.bench.results.folder import CONFIG, RESULTS, open_run
from switch_ema.bench.stats.summarize import summarize
from switch_ema.bench.stats.summary import ComparisonSummary, TaskSummary
from switch_ema.bench.text import unknown
from switch_ema.paper import TABLES
from switch_ema.paper.reproduce.presets import RowSettings, row_config
from switch_ema.paper.tables.table import PaperRow, PaperTable


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
    missing = [name for name in names if name not in TABLES]
    if missing:
        raise unknown("table", missing[0], TABLES)
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
    """Plan one comparison for each row, and refuse folders that hold another one.

    A row that several tables show is planned once.
    """
    plans: dict[Path, RowPlan] = {}
    for table, row in select_rows(tables, patterns):
        plan = plan_row(table, row, settings, out)
        plans.setdefault(plan.folder, plan)
    return list(plans.values())


def plan_row(
    table: PaperTable, row: PaperRow, settings: RowSettings, out: Path
) -> RowPlan:
    """Plan the comparison of one row, and refuse a folder that holds another one."""
    if table.seeds is not None:
        settings = replace(settings, seeds=table.seeds)
    plan = RowPlan(
        table=table,
        row=row,
        config=row_config(row, settings),
        folder=row_folder(out, table, row, settings.scale),
    )
    _refuse_other_settings(plan)
    return plan


def row_folder(out: Path, table: PaperTable, row: PaperRow, scale: str) -> Path:
    """Return the folder of a row: below that of its table."""
    home = TABLES[row.home] if row.home else table
    return table_folder(out, home, scale) / row.name


def table_folder(out: Path, table: PaperTable, scale: str) -> Path:
    """Return the folder in which the rows of a table have theirs."""
    return out / f"reproduce-{table.name}{'' if scale == 'small' else f'-{scale}'}"


def _refuse_other_settings(plan: RowPlan) -> None:
    stored = plan.folder / CONFIG
    text = stored.read_bytes() if stored.is_file() else b""
    # An empty one is what 0.1.0 left after a kill; the results tell then.
    if text and text != plan.config.to_json().encode():
        raise UsageError(
            f"{plan.folder} holds this row with other settings, such as the number of "
            "seeds or the data; choose another --out, or delete it."
        )


@dataclass(frozen=True, kw_only=True)
class RowOutcome:
    """What became of the training of a row."""

    plan: RowPlan
    seconds: float
    summary: ComparisonSummary | None = None
    error: UsageError | None = None
    """Why it could not be trained, or not all of it."""


def run_rows(
    plans: Sequence[RowPlan],
    options: RunOptions,
    watcher_of: Callable[[int, RowPlan], Watcher] = lambda number, plan: Watcher(),
) -> Iterator[RowOutcome]:
    """Train what is left of each row; one that fails does not stop the others.

    Args:
        plans: the rows.
        options: how they are trained.
        watcher_of: makes what is told how a row goes on, from its number, beginning
            with 1, and the row.
    """
    for number, plan in enumerate(plans, start=1):
        place = replace(
            options,
            out=plan.folder.parent,
            name=plan.folder.name,
            keep_checkpoints=plan.table.keeps,
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
    """Say in one line what each method of a row reached."""
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
    return f"{plan.row.name}: {', '.join(parts)}, n = {plan.config.seeds}"


def collect_rows(table: PaperTable, out: Path, scale: str) -> list[ReproducedRow]:
    """Read what is stored of a table; rows without a finished baseline are left out."""
    found = []
    for row in table.rows:
        folder = row_folder(out, table, row, scale)
        if not (folder / RESULTS).is_file():
            continue
        try:
            config, tasks = _read_row(folder)
        except UsageError:  # damaged, which must not hide the other rows
            continue
        for task in tasks:
            own = row.of_task(task.task)
            found.append(ReproducedRow(row=own, task=task, config=config))
    return found


def _read_row(folder: Path) -> tuple[CompareConfig, list[TaskSummary]]:
    config, results = open_run(folder)
    with closing(results):
        return config, summarize(config, results, folder.name).tasks


def damaged_rows(table: PaperTable, out: Path, scale: str) -> list[str]:
    """Say of which rows the stored results cannot be read, and why."""
    told = []
    for row in table.rows:
        folder = row_folder(out, table, row, scale)
        if (folder / RESULTS).is_file():
            try:
                _read_row(folder)
            except UsageError as error:
                told.append(f"{row.title} is left out: {error}")
    return told
