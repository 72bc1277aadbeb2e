"""Plans the rows of the paper's tables, each as one comparison."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

from switch_ema.bench.errors import UsageError
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.results.folder import CONFIG
from switch_ema.bench.spec import READERS, parse_task
from switch_ema.bench.text import read_utf8, unknown
from switch_ema.paper import TABLES
from switch_ema.paper.reproduce.presets import RowSettings, row_config
from switch_ema.paper.tables.table import PaperRow, PaperTable

PREFIX = "reproduce-"
"""Prefix of a table's run folder."""


@dataclass(frozen=True, kw_only=True)
class RowPlan:
    """One row of a table, and the comparison that trains it."""

    table: PaperTable
    row: PaperRow
    config: CompareConfig
    folder: Path
    """Folder of its results."""
    scale: str = "small"
    readers: int | None = None
    """Processes that read the data, if ``--set`` gives them."""


def select_tables(names: Sequence[str]) -> list[PaperTable]:
    """Look up tables by name; all if none is given."""
    missing = [name for name in names if name not in TABLES]
    if missing:
        raise unknown("table", missing[0], TABLES)
    return [TABLES[name] for name in dict.fromkeys(names)] or list(TABLES.values())


def select_rows(
    tables: Sequence[PaperTable], patterns: Sequence[str]
) -> list[tuple[PaperTable, PaperRow]]:
    """Find the rows that match one of the patterns; all without patterns."""
    rows = [(table, row) for table in tables for row in table.rows]
    for pattern in patterns:
        if not any(fnmatchcase(row.name, pattern) for _, row in rows):
            known = ", ".join(dict.fromkeys(row.name for _, row in rows))
            names = " and ".join(table.name for table in tables)
            raise UsageError(
                f"no row of {names} matches {pattern!r}; the rows are {known}."
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
    """Plan one comparison per row; refuse folders that hold another one.

    A row shared by several tables is planned once.
    """
    plans: dict[Path, RowPlan] = {}
    for table, row in select_rows(tables, patterns):
        plan = plan_row(table, row, settings, out)
        plans.setdefault(plan.folder, plan)
    return list(plans.values())


def plan_row(
    table: PaperTable, row: PaperRow, settings: RowSettings, out: Path
) -> RowPlan:
    """Plan the comparison of one row; refuse a folder that holds another one.

    A row that is stored with more seeds keeps them all. A figure with seeds of its own
    keeps their number.
    """
    if table.seeds is not None:
        settings = replace(settings, seeds=table.seeds, until_decided=False)
    folder = row_folder(out, table, row, settings.scale)
    config = row_config(row, settings)
    if config.until_decided:
        # Imports torch, which planning does not need otherwise.
        from switch_ema.bench.compare import first_look

        config = first_look(config)
    config = _with_stored(config, folder)
    if settings.readers is not None:
        _check_readers(config, settings.readers)
    return RowPlan(
        table=table,
        row=row,
        config=config,
        folder=folder,
        scale=settings.scale,
        readers=settings.readers,
    )


def _check_readers(config: CompareConfig, readers: object) -> None:
    """Refuse a number of reading processes for tasks that have no such option."""
    # Imports torch, which planning does not need otherwise.
    from switch_ema.bench.loading import load_task_class

    for task in config.tasks:
        spec = parse_task(task)
        load_task_class(replace(spec, options={**spec.options, READERS: readers}))


def row_folder(out: Path, table: PaperTable, row: PaperRow, scale: str) -> Path:
    """Return the folder of a row, inside that of its table."""
    home = TABLES[row.home] if row.home else table
    return table_folder(out, home, scale) / row.name


def table_folder(out: Path, table: PaperTable, scale: str) -> Path:
    """Return the parent folder of a table's rows."""
    return out / f"{PREFIX}{_scaled_name(table, scale)}"


def row_evidence(evidence: Path, table: PaperTable, row: PaperRow, scale: str) -> Path:
    """Return the evidence file of a row."""
    home = TABLES[row.home] if row.home else table
    return evidence / _scaled_name(home, scale) / f"{row.name}.jsonl"


def _scaled_name(table: PaperTable, scale: str) -> str:
    return table.name if scale == "small" else f"{table.name}-{scale}"


def _with_stored(config: CompareConfig, folder: Path) -> CompareConfig:
    """Add the seeds that a row has already; refuse other settings."""
    stored = folder / CONFIG
    # 0.1.0 left an empty file after a kill; then the results decide.
    text = read_utf8(stored) if stored.is_file() else ""
    if not text:
        return config
    before = CompareConfig.from_json(text, str(stored))
    if before.identity != config.identity:
        raise UsageError(
            f"{folder} holds this row with other settings, such as epochs or data; "
            "choose another --out or delete the folder."
        )
    return config.extending(before)
