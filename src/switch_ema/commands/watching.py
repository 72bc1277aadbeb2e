"""What the terminal shows while a comparison is trained."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from switch_ema.bench.compare import Watcher
from switch_ema.bench.execute.local import OnEpoch
from switch_ema.bench.plan.cells import Cell
from switch_ema.bench.report.numbers import shortened
from switch_ema.bench.text import printable


class Bar(Watcher):
    """A bar of the epochs done, over all trainings."""

    def __init__(self, console: Console, title: str = "epochs") -> None:
        self._console, self._title = console, title

    @contextmanager
    def training(self, cells: Sequence[Cell], done: int) -> Iterator[OnEpoch]:
        """Show the bar during a round of trainings."""
        if not cells:
            yield lambda cell, epoch: None
            return
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
        )
        finished: dict[str, int] = {}
        with Progress(*columns, console=self._console) as progress:
            total = sum(cell.recipe.epochs for cell in cells)
            bar = progress.add_task("starting workers", total=total)

            def on_epoch(cell: Cell, epoch: int) -> None:
                finished[cell.id] = epoch
                title = f"{self._title}, now {_named(cell)}"
                done = sum(finished.values())
                progress.update(bar, completed=done, description=escape(title))

            yield on_epoch


def _named(cell: Cell) -> str:
    """Name a training in few words: task, methods and seeds."""
    methods = cell.methods[0] if len(cell.methods) == 1 else f"{cell.methods[0]}, ..."
    first, last = cell.seeds[0], cell.seeds[-1]
    seeds = f"seed {first}" if first == last else f"seeds {first} to {last}"
    return shortened(printable(f"{cell.task}: {methods}, {seeds}"), 48)


class TalkingBar(Bar):
    """The bar of one comparison that also says what was done before, or tuned."""

    @contextmanager
    def training(self, cells: Sequence[Cell], done: int) -> Iterator[OnEpoch]:
        """Say how much is stored already, then show the bar."""
        if done:
            self._console.print(f"{done} of {done + len(cells)} trainings are done.")
        with super().training(cells, done) as on_epoch:
            yield on_epoch

    def tuned(self, methods: Sequence[str]) -> None:
        """Name the options that tuning has chosen."""
        self._console.print(f"Tuned methods: {escape(', '.join(methods))}")
