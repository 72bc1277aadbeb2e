"""Trains what a run has not finished yet, with a progress bar."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from switch_ema.bench.errors import UsageError
from switch_ema.bench.execute import train_cells
from switch_ema.bench.execute.local import Progress as Advance
from switch_ema.bench.execute.options import RunOptions
from switch_ema.bench.plan.cells import Cell
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.report.numbers import counted
from switch_ema.bench.results.samples import save_samples
from switch_ema.bench.results.store import Results
from switch_ema.bench.stats.summarize import FINISHED
from switch_ema.bench.train.checkpoints import checkpoint_path
from switch_ema.bench.train.loop import Place


def train_rest(
    cells: list[Cell],
    config: CompareConfig,
    results: Results,
    folder: Path,
    options: RunOptions,
    console: Console,
    title: str = "",
) -> None:
    """Train the cells that are not finished and store each as it comes.

    One that fails does not stop the others; all that failed are named at the end.
    """
    statuses = results.statuses()
    todo = [cell for cell in cells if statuses.get(cell.id) not in FINISHED]
    if len(todo) < len(cells) and not title:
        console.print(f"{len(cells) - len(todo)} of {len(cells)} trainings are done.")
    if not todo:
        return

    def is_first(cell: Cell) -> bool:
        return cell.seeds[0] == config.first_seed

    def is_kept(cell: Cell) -> bool:
        if options.keep_checkpoints == "first":
            return is_first(cell)
        return options.keep_checkpoints == "all"

    sources = results.meta()["sources"]
    # Reversed, so that the first cell of a task is the one that stays.
    firsts = {cell.task: cell.id for cell in reversed(cells) if is_first(cell)}

    def place(cell: Cell) -> Place:
        return Place(
            folder,
            options.device,
            options.track,
            is_kept(cell),
            sources,
            makes_samples=is_first(cell),
            measures_trivial=firsts.get(cell.task) == cell.id,
        )

    failures: dict[str, list[Cell]] = {}
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
            save_samples(folder, cell.task, result.samples)
            if result.status == "failed":
                failures.setdefault(result.message, []).append(cell)
            elif not is_kept(cell):
                checkpoint_path(folder, cell).unlink(missing_ok=True)
    if failures:
        raise UsageError(_tell_failures(failures, len(todo)))


def _tell_failures(failures: Mapping[str, Sequence[Cell]], trained: int) -> str:
    """Name what failed, trainings with the same message once."""
    told = []
    for message, cells in failures.items():
        more = f" and {counted(len(cells) - 1, 'other')}" if len(cells) > 1 else ""
        told.append(f"{cells[0]}{more}: {message}")
    number = sum(map(len, failures.values()))
    if trained == 1:
        return told[0]
    return f"{number} of {counted(trained, 'training')} failed: {'; '.join(told)}"


@contextmanager
def _progress(cells: list[Cell], console: Console, title: str) -> Iterator[Advance]:
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
