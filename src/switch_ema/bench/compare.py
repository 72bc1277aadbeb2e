"""`switch-ema compare`: plan, train, measure, report."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from switch_ema.bench.checkpoints import checkpoint_path
from switch_ema.bench.config import CompareConfig
from switch_ema.bench.environment import describe_environment
from switch_ema.bench.executors import check_executor, train_cells
from switch_ema.bench.plan import Cell, make_plan
from switch_ema.bench.report.page import write_page
from switch_ema.bench.report.sections import load_sections
from switch_ema.bench.report.terminal import print_comparison
from switch_ema.bench.results import Results
from switch_ema.bench.spec import UsageError
from switch_ema.bench.summarize import FINISHED, summarize
from switch_ema.bench.summary import ComparisonSummary
from switch_ema.bench.train import Place
from switch_ema.bench.tuning import tune

RESULTS, REPORT, CONFIG = "results.sqlite", "report.html", "config.json"


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How a comparison is run; the numbers do not depend on it."""

    out: Path = Path("runs")
    """Folder that run folders are made in."""
    name: str | None = None
    """Of the run folder; by default made from the tasks and the settings."""
    jobs: int = 0
    """Cells trained at a time, each with its share of the cores; 0: one per core."""
    executor: str = "local"
    """Where cells are trained: local (processes) or ray (a cluster)."""
    address: str | None = None
    """Of the Ray cluster; None: the one that runs on this machine, or a new one."""
    device: str | None = None
    """cpu, or None for what Accelerate finds."""
    track: tuple[str, ...] = ()
    """Accelerate's trackers, such as tensorboard."""
    keep_checkpoints: str = "first"
    """Whose weights are kept, for switch-ema landscape: first (seed), all or none."""
    dry_run: bool = False
    """Print the plan and stop."""

    def __post_init__(self) -> None:
        if self.keep_checkpoints not in ("first", "all", "none"):
            raise UsageError(
                "keep_checkpoints must be first, all or none, "
                f"got {self.keep_checkpoints!r}."
            )
        if self.jobs < 0:
            raise UsageError(f"jobs must be at least 0, got {self.jobs}.")
        check_executor(self.executor, self.address)


def run_comparison(
    config: CompareConfig, options: RunOptions, console: Console, *, title: str = ""
) -> Path | None:
    """Run a comparison, or what is left of it; return the report's path.

    Plan, progress and findings are printed; with a title, which stands for one of many
    comparisons, one line of progress alone.
    """
    bar, console = console, Console(quiet=True) if title else console
    print_plan(make_plan(config), console)
    if options.dry_run:
        return None
    folder = options.out / (options.name or config.default_name)
    with locked(folder), closing(Results(folder / RESULTS, create=True)) as results:
        _claim(results, config, folder)
        try:
            if config.tune:
                config = _tuned(config, results, folder, options, console)
            cells = make_plan(config)
            _train(cells, config, results, folder, options, bar, title)
        finally:  # also after Ctrl-C: a report of what has finished
            path = report(config, results, folder, console)
    return path


def report(
    config: CompareConfig, results: Results, folder: Path, console: Console
) -> Path | None:
    """Print what a run has found and write its page; None if it has found nothing."""
    summary = summarize(config, results, folder.name)
    if not summary.tasks:
        console.print("No baseline has finished yet, so there is nothing to compare.")
        return None
    print_comparison(summary, console)
    return _write_page(summary, folder)


def report_page(folder: Path) -> Path:
    """Write the page of a run anew, with the analyses that it has got since."""
    config, results = open_run(folder)
    with closing(results):
        return _write_page(summarize(config, results, folder.name), folder)


def _write_page(summary: ComparisonSummary, folder: Path) -> Path:
    command = f"switch-ema compare --config {folder / CONFIG}"
    analyses = load_sections(folder)
    return write_page(summary, folder / REPORT, command=command, analyses=analyses)


def open_run(folder: Path) -> tuple[CompareConfig, Results]:
    """Open a finished or unfinished run."""
    results = Results(folder / RESULTS)
    meta = results.meta()
    stored = meta.get("tuned config") or meta.get("config")
    if stored is None:
        raise UsageError(f"{folder} has no configuration; was it ever started?")
    return CompareConfig.from_json(stored, str(folder)), results


def print_plan(cells: list[Cell], console: Console) -> None:
    """Say what will be trained before anything is."""
    table = Table("task", "one training each of", "seeds", "epochs", title="Plan")
    rows: dict[tuple[str, tuple[str, ...]], list[Cell]] = {}
    for cell in cells:
        rows.setdefault((cell.task, cell.methods), []).append(cell)
    for (task, methods), members in rows.items():
        seeds = sum(len(cell.seeds) for cell in members)
        names = escape(", ".join(methods))
        epochs = str(members[0].recipe.epochs)
        table.add_row(escape(task), names, str(seeds), epochs)
    console.print(table)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes out of a run folder."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise UsageError(
            f"{folder} is in use by another process; wait for it or choose --name."
        ) from None
    try:
        yield
    finally:
        lock.release()


def _claim(results: Results, config: CompareConfig, folder: Path) -> None:
    """Make a new run folder this comparison's; refuse another comparison's."""
    stored = results.meta()
    if stored.get("config", config.to_json()) != config.to_json():
        raise UsageError(
            f"{folder} holds a comparison with other settings; choose another --name, "
            "or delete it."
        )
    if stored.get("sources", config.sources) != config.sources:
        raise UsageError(
            f"the file of a task has changed since {folder} was begun, and results of "
            "both must not be mixed; choose another --name, or delete it."
        )
    results.set_meta("config", config.to_json())
    results.set_meta("sources", config.sources)
    (folder / CONFIG).write_text(config.to_json())
    for key, value in describe_environment().items():
        results.set_meta(f"environment.{key}", value)


def _tuned(
    config: CompareConfig,
    results: Results,
    folder: Path,
    options: RunOptions,
    console: Console,
) -> CompareConfig:
    def train(cells: list[Cell]) -> None:
        _train(cells, config, results, folder, options, console)

    tuned = tune(config, results, train)
    results.set_meta("tuned config", tuned.to_json())
    console.print(f"Tuned methods: {escape(', '.join(tuned.methods))}")
    return tuned


def _train(
    cells: list[Cell],
    config: CompareConfig,
    results: Results,
    folder: Path,
    options: RunOptions,
    console: Console,
    title: str = "",
) -> None:
    """Train the cells that are not finished and store each as it comes."""
    statuses = results.statuses()
    todo = [cell for cell in cells if statuses.get(cell.id) not in FINISHED]
    if len(todo) < len(cells) and not title:
        console.print(f"{len(cells) - len(todo)} of {len(cells)} trainings are done.")
    if not todo:
        return

    def is_kept(cell: Cell) -> bool:
        if options.keep_checkpoints == "first":
            return cell.seeds[0] == config.first_seed
        return options.keep_checkpoints == "all"

    def place(cell: Cell) -> Place:
        return Place(folder, options.device, options.track, is_kept(cell))

    with _progress(todo, console, title or "epochs") as advance:
        for cell, result in train_cells(
            todo,
            place,
            options.jobs,
            advance,
            executor=options.executor,
            address=options.address,
        ):
            results.add(cell, result)
            if result.status == "failed":
                raise UsageError(f"{cell}: {result.message}")
            if not is_kept(cell):
                checkpoint_path(folder, cell).unlink(missing_ok=True)


@contextmanager
def _progress(  # type: ignore[no-untyped-def]
    cells: list[Cell], console: Console, title: str
):
    """Show epochs done over all cells; yield the function that advances it."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    done: dict[str, int] = {}
    with Progress(*columns, console=console) as progress:
        total = sum(cell.recipe.epochs for cell in cells)
        bar = progress.add_task(escape(title), total=total)

        def advance(cell: Cell, epoch: int) -> None:
            done[cell.id] = epoch
            progress.update(bar, completed=sum(done.values()))

        yield advance
