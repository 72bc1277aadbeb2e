"""Every table and figure of the paper in one run: its rows and its progress.

Rows and seeds are chosen once and stored, so a killed run resumes with the same rows;
the seconds spent on each row are stored, too.
"""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from switch_ema._files import write_atomically
from switch_ema.bench.compare import Watcher
from switch_ema.bench.errors import UsageError
from switch_ema.bench.execute.options import RunOptions
from switch_ema.bench.report.numbers import duration
from switch_ema.bench.report.sections import AnalysisSection, Sheet
from switch_ema.bench.text import counted, listed, read_json
from switch_ema.paper import TABLES
from switch_ema.paper.reproduce.budget import Offer, choose_rows
from switch_ema.paper.reproduce.estimate import (
    jobs_at_once,
    measure_whole_row,
    row_length,
)
from switch_ema.paper.reproduce.plan import RowPlan, plan_row
from switch_ema.paper.reproduce.presets import RowSettings, seeds_of
from switch_ema.paper.reproduce.row_seconds import (
    INLINE_SECONDS,
    SECONDS,
    START_SECONDS,
)
from switch_ema.paper.reproduce.run import RowOutcome, run_rows
from switch_ema.paper.tables.table import PaperRow, PaperTable

_STATE = "all.json"
_YARDSTICK = "table-3", "wrn28-10"
"""Row used to measure the speed of this machine, by one epoch."""
_MEASUREMENTS = 3


@dataclass
class RowState:
    """One row of the run."""

    part: str
    row: str
    seeds: int
    expected: float
    """Expected seconds at the time of planning."""
    seconds: float = 0.0
    """Seconds spent so far."""
    state: str = "waiting"
    """waiting, done, failed, or skipped for lack of time."""

    def __str__(self) -> str:
        """Name it."""
        return f"{self.part} {self.row}"


@dataclass
class FullRun:
    """The whole run: settings, chosen rows and progress."""

    settings: dict[str, Any]
    budget: float | None
    rows: list[RowState]
    left_out: dict[str, list[str]] = field(default_factory=dict)
    """Rows that did not fit into the budget, by part."""
    drawing: dict[str, float] = field(default_factory=dict)
    """Seconds of measuring and drawing after training, by part."""

    @property
    def spent(self) -> float:
        """Seconds spent so far, over all processes."""
        return sum(row.seconds for row in self.rows) + sum(self.drawing.values())

    @property
    def pace(self) -> float:
        """Ratio of actual to expected time so far."""
        done = [row for row in self.rows if row.state == "done" and row.expected > 0]
        expected = sum(row.expected for row in done)
        return sum(row.seconds for row in done) / expected if len(done) > 2 else 1.0

    def has_time_for(self, row: RowState) -> bool:
        """Whether a row still fits into the budget; started rows are finished."""
        if self.budget is None or row.seconds > 0:
            return True
        return self.spent + self.pace * row.expected <= self.budget

    def seconds_of(self, part: str) -> float:
        """Return the seconds spent on a table or figure."""
        rows = sum(row.seconds for row in self.rows if row.part == part)
        return rows + self.drawing.get(part, 0.0)


def full_run_folder(out: Path, scale: str) -> Path:
    """Return the parent folder of the tables of such a run."""
    return out / f"reproduce-all{'' if scale == 'small' else f'-{scale}'}"


def _as_stored(settings: RowSettings) -> dict[str, Any]:
    """Return settings as JSON reads them again: tuples are lists there."""
    stored: dict[str, Any] = json.loads(json.dumps(asdict(settings)))
    return stored


def open_full_run(
    settings: RowSettings, budget: float | None, options: RunOptions, folder: Path
) -> FullRun:
    """Load the run's state, or plan a new run; nothing is stored."""
    wanted = _as_stored(settings)
    path = folder / _STATE
    if path.is_file():
        found = _read(path)
        # Earlier versions stored fewer settings.
        if ({**_as_stored(RowSettings()), **found.settings}, found.budget) != (
            wanted,
            budget,
        ):
            asked = "none" if found.budget is None else duration(found.budget)
            raise UsageError(
                f"{folder} was started with other settings (budget: {asked}, "
                f"{', '.join(f'{k}: {v}' for k, v in found.settings.items())}); "
                "choose another --out, or delete it."
            )
        return found
    return _choose(settings, budget, options)


def save_full_run(run: FullRun, folder: Path) -> None:
    """Store the run's state."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / _STATE, json.dumps(asdict(run), indent=1))


def _read(path: Path) -> FullRun:
    stored = read_json(path.read_bytes(), str(path))
    try:
        rows = [RowState(**row) for row in stored.pop("rows")]
        return FullRun(rows=rows, **stored)
    except (AttributeError, KeyError, TypeError):
        raise UsageError(
            f"{path} is damaged; delete it to plan the run again."
        ) from None


def _choose(
    settings: RowSettings, budget: float | None, options: RunOptions
) -> FullRun:
    """Plan all rows with the requested seeds, or those that fit the budget."""
    known = {
        (table.name, row.name): table.seeds or seeds_of(row, settings)
        for table, row in all_rows()
    }
    if settings.scale != "small":
        rows = [RowState(*name, seeds, 0.0) for name, seeds in known.items()]
        return FullRun(asdict(settings), None, rows)
    offers = make_offers(settings, _speed(options.device), options)
    if budget is None:
        priced = [(offer, known[offer.part, offer.row]) for offer in offers]
        rows = [RowState(o.part, o.row, n, o.seconds(n)) for o, n in priced]
        return FullRun(asdict(settings), None, rows)
    chosen = choose_rows(offers, budget)
    rows = [
        RowState(c.offer.part, c.offer.row, c.seeds, round(c.seconds, 1))
        for c in chosen
    ]
    taken = {(row.part, row.row) for row in rows}
    left_out: dict[str, list[str]] = {}
    for offer in offers:
        if (offer.part, offer.row) not in taken:
            left_out.setdefault(offer.part, []).append(offer.row)
    return FullRun(asdict(settings), budget, rows, left_out)


def all_rows() -> list[tuple[PaperTable, PaperRow]]:
    """List the rows of all tables and figures, shared rows once."""
    return [
        (table, row) for table in TABLES.values() for row in table.rows if not row.home
    ]


def make_offers(
    settings: RowSettings, speed: float, options: RunOptions
) -> list[Offer]:
    """Estimate all rows on a machine with ``speed`` times the declared seconds."""
    jobs = jobs_at_once(options)
    start = INLINE_SECONDS if options.executor == "inline" else START_SECONDS
    shown = {(row.home, row.name) for table in TABLES.values() for row in table.rows}
    return [
        Offer(
            part=table.name,
            row=row.name,
            start=speed * start,
            seed=speed
            * SECONDS[table.name][row.name]
            * row_length(row, settings)
            / jobs,
            fixed_seeds=table.seeds,
            is_first=(table.name, row.name) in shown or row.name in table.first,
        )
        for table, row in all_rows()
    ]


def _speed(device: str | None) -> float:
    """Measure how much slower this machine is than the declared seconds.

    Takes the shortest of several epochs: the first one also loads libraries and data,
    and the others may be disturbed by load.
    """
    part, name = _YARDSTICK
    row = next(row for row in TABLES[part].rows if row.name == name)
    plan = plan_row(TABLES[part], row, RowSettings(seeds=1), Path("nowhere"))
    seconds = min(measure_whole_row(plan, device) for _ in range(_MEASUREMENTS))
    return seconds / SECONDS[part][name]


def train_full_run(
    run: FullRun,
    folder: Path,
    options: RunOptions,
    watcher_of: Callable[[RowState, RowPlan], Watcher],
) -> Iterator[tuple[RowState, RowOutcome | None]]:
    """Train the remaining rows; a row without time left has no outcome."""
    for row in run.rows:
        if row.state in ("done", "skipped"):
            continue
        if not run.has_time_for(row):
            row.state = "skipped"
            save_full_run(run, folder)
            yield row, None
            continue
        plan = _plan_of(row, run, folder)

        def watcher(number: int, plan: RowPlan, row: RowState = row) -> Watcher:
            return watcher_of(row, plan)

        with timed(run, folder, row):
            (outcome,) = run_rows([plan], options, watcher)
            row.state = "done" if outcome.error is None else "failed"
        yield row, outcome


def _plan_of(row: RowState, run: FullRun, folder: Path) -> RowPlan:
    """Plan the comparison of a row with its chosen seeds."""
    table = TABLES[row.part]
    settings = replace(RowSettings(**run.settings), seeds=row.seeds)
    paper_row = next(one for one in table.rows if one.name == row.row)
    return plan_row(table, paper_row, settings, folder)


@contextmanager
def timed(run: FullRun, folder: Path, row: RowState) -> Iterator[None]:
    """Add the time spent inside to a row and store it, even if interrupted."""
    started = time.perf_counter()
    try:
        yield
    finally:
        row.seconds = round(row.seconds + time.perf_counter() - started, 1)
        save_full_run(run, folder)


def _overview(run: FullRun, tables: Sequence[PaperTable]) -> Sheet:
    """Tabulate what was trained, the time and the omitted rows, by part."""
    lines = []
    for table in tables:
        own = [row for row in run.rows if row.part == table.name]
        done = [row for row in own if row.state == "done"]
        shared = sum(bool(row.home) for row in table.rows)
        seeds = sorted({row.seeds for row in done})
        trained = f"{len(done)} of {len(table.rows) - shared}"
        lines.append(
            [
                table.name,
                trained if len(table.rows) > shared else "of other tables",
                f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else _only(seeds),
                duration(run.seconds_of(table.name), "-"),
            ]
        )
    total = duration(run.spent, "-")
    lines.append(["all", str(sum(r.state == "done" for r in run.rows)), "", total])
    return Sheet(
        caption="What was trained, and time on this machine, including measuring and "
        "drawing",
        header=["part", "rows", "seeds", "time"],
        rows=lines,
    )


def _only(seeds: Sequence[int]) -> str:
    return str(seeds[0]) if seeds else "-"


def overview_section(
    run: FullRun, tables: Sequence[PaperTable], command: str, overall: str
) -> AnalysisSection:
    """Build the first section of the page: findings, parts and omissions."""
    return AnalysisSection(
        key="overview",
        title="Overview",
        command=command,
        paragraphs=[*([overall] if overall else []), *notes(run)],
        sheets=[_overview(run, tables)],
    )


def notes(run: FullRun) -> Iterator[str]:
    """Report rows omitted by the budget, and rows not done (yet)."""
    if run.budget is not None:
        rows = sum(map(len, run.left_out.values()))
        yield (
            f"The budget of {duration(run.budget)} allowed "
            f"{counted(len(run.rows), 'row')} with their seeds; {counted(rows, 'row')} "
            "did not fit. Each part lists its missing rows."
        )
    words = {
        "skipped": "No time was left for",
        "failed": "Could not be trained:",
        "waiting": "Not trained yet:",
    }
    for state, said in words.items():
        names = [str(row) for row in run.rows if row.state == state]
        if names:
            yield f"{said} {listed(names)}."
