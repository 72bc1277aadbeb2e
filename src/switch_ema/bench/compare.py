"""`switch-ema compare`: plan, train, measure, report."""

import shlex
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from filelock import FileLock, Timeout
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from switch_ema._files import write_atomically
from switch_ema.bench.errors import UsageError
from switch_ema.bench.execute.options import RunOptions
from switch_ema.bench.plan.cells import Cell, make_plan
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.plan.facts import FACTS, dump_facts
from switch_ema.bench.report.page import write_page
from switch_ema.bench.report.sections import load_sections
from switch_ema.bench.report.terminal import print_comparison
from switch_ema.bench.rest import train_rest
from switch_ema.bench.results.environment import describe_environment
from switch_ema.bench.results.store import Results
from switch_ema.bench.stats.summarize import summarize
from switch_ema.bench.stats.summary import ComparisonSummary
from switch_ema.bench.tuning import check_tuning, tune

RESULTS, REPORT, CONFIG = "results.sqlite", "report.html", "config.json"


def run_comparison(
    config: CompareConfig, options: RunOptions, console: Console, *, title: str = ""
) -> Path | None:
    """Run a comparison, or what is left of it; return the report's path.

    Plan, progress and findings are printed; with a title, which stands for one of many
    comparisons, one line of progress alone.
    """
    bar, console = console, Console(quiet=True) if title else console
    print_plan(make_plan(config), console)
    if config.tune:
        check_tuning(config)
    if options.dry_run:
        return None
    folder = options.out / (options.name or config.default_name)
    with locked(folder), closing(Results(folder / RESULTS, create=True)) as results:
        _claim(results, config, folder)
        try:
            if config.tune:
                config = _tuned(config, results, folder, options, console)
            cells = make_plan(config)
            train_rest(cells, config, results, folder, options, bar, title)
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
    command = shlex.join(["switch-ema", "compare", "--config", str(folder / CONFIG)])
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
    results.set_meta(FACTS, dump_facts(config.tasks))
    write_atomically(folder / CONFIG, config.to_json())
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
        train_rest(cells, config, results, folder, options, console)

    tuned = tune(config, results, train)
    results.set_meta("tuned config", tuned.to_json())
    console.print(f"Tuned methods: {escape(', '.join(tuned.methods))}")
    return tuned
