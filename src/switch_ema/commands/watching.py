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
            bar = progress.add_task(escape(self._title), total=total)

            def on_epoch(cell: Cell, epoch: int) -> None:
                finished[cell.id] = epoch
                progress.update(bar, completed=sum(finished.values()))

            yield on_epoch


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
