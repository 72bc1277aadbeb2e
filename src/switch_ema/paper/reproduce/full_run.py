"""Every table and figure of the paper in one run: what is chosen, and how far it is.

The choice of rows and seeds is made once and stored, so that a run that was killed
goes on with the same rows; so are the seconds that each row has taken.
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
"""The row of which one epoch tells how fast this machine is."""
_MEASUREMENTS = 3


@dataclass
class RowState:
    """One row of the run."""

    part: str
    row: str
    seeds: int
    expected: float
    """Seconds that it was expected to take when it was chosen."""
    seconds: float = 0.0
    """Seconds that it has taken so far."""
    state: str = "waiting"
    """waiting, done, failed, or skipped: there was no time left for it."""

    def __str__(self) -> str:
        """Name it."""
        return f"{self.part} {self.row}"


@dataclass
class FullRun:
    """The run as a whole: what was asked for, what was chosen, how far it is."""

    settings: dict[str, Any]
    budget: float | None
    rows: list[RowState]
    left_out: dict[str, list[str]] = field(default_factory=dict)
    """By part the rows that did not fit into the budget."""
    drawing: dict[str, float] = field(default_factory=dict)
    """By part the seconds that measuring and drawing after the training took."""

    @property
    def spent(self) -> float:
        """Seconds that the run has taken, all its processes together."""
        return sum(row.seconds for row in self.rows) + sum(self.drawing.values())

    @property
    def pace(self) -> float:
        """By how much rows have taken longer than expected so far."""
        done = [row for row in self.rows if row.state == "done" and row.expected > 0]
        expected = sum(row.expected for row in done)
        return sum(row.seconds for row in done) / expected if len(done) > 2 else 1.0

    def has_time_for(self, row: RowState) -> bool:
        """Whether a row still fits into the budget; what has begun is ended."""
        if self.budget is None or row.seconds > 0:
            return True
        return self.spent + self.pace * row.expected <= self.budget

    def seconds_of(self, part: str) -> float:
        """Return what a table or figure has taken."""
        rows = sum(row.seconds for row in self.rows if row.part == part)
        return rows + self.drawing.get(part, 0.0)


def full_run_folder(out: Path, scale: str) -> Path:
    """Return the folder that the tables of such a run have theirs in."""
    return out / f"reproduce-all{'' if scale == 'small' else f'-{scale}'}"


def open_full_run(
    settings: RowSettings, budget: float | None, options: RunOptions, folder: Path
) -> FullRun:
    """Read how far the run is, or choose what a new one trains; nothing is stored."""
    wanted = asdict(settings)
    path = folder / _STATE
    if path.is_file():
        found = _read(path)
        if (found.settings, found.budget) != (wanted, budget):
            asked = "none" if found.budget is None else duration(found.budget)
            raise UsageError(
                f"{folder} was begun with other settings (budget: {asked}, "
                f"{', '.join(f'{k}: {v}' for k, v in found.settings.items())}); "
                "choose another --out, or delete it."
            )
        return found
    return _choose(settings, budget, options)


def save_full_run(run: FullRun, folder: Path) -> None:
    """Store how far the run is."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / _STATE, json.dumps(asdict(run), indent=1))


def _read(path: Path) -> FullRun:
    stored = read_json(path.read_bytes(), str(path))
    try:
        rows = [RowState(**row) for row in stored.pop("rows")]
        return FullRun(rows=rows, **stored)
    except (AttributeError, KeyError, TypeError):
        raise UsageError(
            f"{path} is damaged; delete it, and the run chooses its rows again."
        ) from None


def _choose(
    settings: RowSettings, budget: float | None, options: RunOptions
) -> FullRun:
    """Take all rows with the seeds that were asked for, or what fits the budget."""
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
    """List the rows of all tables and figures; one that several show is listed once."""
    return [
        (table, row) for table in TABLES.values() for row in table.rows if not row.home
    ]


def make_offers(
    settings: RowSettings, speed: float, options: RunOptions
) -> list[Offer]:
    """Price all rows on a machine that takes ``speed`` times the declared seconds."""
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
    """Measure by what factor this machine is slower than the declared seconds.

    The first measurement also reads libraries and data, and others may be disturbed:
    the shortest is closest to what an epoch takes.
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
    """Train what is left, row by row; a row without time left has no outcome."""
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
    """Plan the comparison of a row with the seeds that were chosen for it."""
    table = TABLES[row.part]
    settings = replace(RowSettings(**run.settings), seeds=row.seeds)
    paper_row = next(one for one in table.rows if one.name == row.row)
    return plan_row(table, paper_row, settings, folder)


@contextmanager
def timed(run: FullRun, folder: Path, row: RowState) -> Iterator[None]:
    """Add the time inside to a row and store it, also if it is interrupted."""
    started = time.perf_counter()
    try:
        yield
    finally:
        row.seconds = round(row.seconds + time.perf_counter() - started, 1)
        save_full_run(run, folder)


def _overview(run: FullRun, tables: Sequence[PaperTable]) -> Sheet:
    """Say of each part what was trained, how long it took and what was left out."""
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
        caption="What was trained, and how long it took on this machine, measuring "
        "and drawing included",
        header=["part", "rows", "seeds", "time"],
        rows=lines,
    )


def _only(seeds: Sequence[int]) -> str:
    return str(seeds[0]) if seeds else "-"


def overview_section(
    run: FullRun, tables: Sequence[PaperTable], command: str, overall: str
) -> AnalysisSection:
    """Begin the page of the whole run: what was found, its parts, what was left out."""
    return AnalysisSection(
        key="overview",
        title="Overview",
        command=command,
        paragraphs=[*([overall] if overall else []), *notes(run)],
        sheets=[_overview(run, tables)],
    )


def notes(run: FullRun) -> Iterator[str]:
    """Say what the budget left out, and what is not done (yet)."""
    if run.budget is not None:
        rows = sum(map(len, run.left_out.values()))
        yield (
            f"A budget of {duration(run.budget)} chose {counted(len(run.rows), 'row')} "
            f"and their seeds; {counted(rows, 'row')} did not fit. Each part names its "
            "rows that are missing."
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
