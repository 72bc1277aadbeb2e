"""What the terminal shows while a comparison is trained."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from switch_ema.bench.compare import Watcher
from switch_ema.bench.execute.local import OnEpoch
from switch_ema.bench.plan.cells import Cell
from switch_ema.bench.report.numbers import shortened
from switch_ema.bench.spec import is_script
from switch_ema.bench.text import printable
from switch_ema.bench.train.values import Latest


class _WithLine(Progress):
    """Bars with one line of text below them."""

    now = ""

    def get_renderables(self) -> Iterable[RenderableType]:
        """Return the bars, and the line if there is one."""
        yield from super().get_renderables()
        if self.now:
            yield Text(self.now, no_wrap=True, overflow="ellipsis")


class Bar(Watcher):
    """A bar of the epochs done, over all trainings."""

    def __init__(self, console: Console, title: str = "epochs") -> None:
        self._console, self._title = console, title

    @contextmanager
    def training(self, cells: Sequence[Cell], done: int) -> Iterator[OnEpoch]:
        """Show the bar during a round of trainings."""
        if not cells:
            yield lambda cell, epoch, latest: None
            return
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
        )
        finished: dict[str, int] = {}
        with _WithLine(*columns, console=self._console) as progress:
            total: int | None = sum(cell.recipe.epochs for cell in cells)
            if is_script(cells[0].task):
                total = None  # a script knows by itself how long it trains
            bar = progress.add_task("starting workers", total=total)

            def on_epoch(cell: Cell, epoch: int, latest: Latest | None) -> None:
                finished[cell.id] = epoch
                done = sum(finished.values())
                progress.now = self._now(cell, latest)
                title = escape(self._title)
                progress.update(bar, completed=done, description=title)

            yield on_epoch
            progress.now = ""  # what stays on the screen is the bar alone

    def _now(self, cell: Cell, latest: Latest | None) -> str:
        """Return what stands below the bar after an epoch of this training."""
        return ""


class TwoBars:
    """One display for many comparisons: a bar of all of them, and one of the present.

    The first bar counts seconds, since comparisons differ in length.
    """

    def __init__(self, console: Console, expected: float, done: float) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[told]}"),
        )
        self._progress = Progress(*columns, console=console)
        self._all = self._progress.add_task(
            "all", total=expected, completed=int(done), told=""
        )
        self._now = self._progress.add_task("", total=None, told="")

    def __enter__(self) -> "TwoBars":
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def begin(self, title: str, told: str) -> None:
        """Say what is done next, and beside the first bar how far everything is."""
        self._progress.update(self._all, told=told)
        self._progress.reset(
            self._now, description=escape(title), total=None, told="begins"
        )

    def end(self, expected: float, told: str) -> None:
        """Count what was expected of the comparison that has ended."""
        self._progress.update(self._all, advance=expected, told=told)

    def watcher(self) -> Watcher:
        """Return what shows the epochs of the present comparison."""
        return _Second(self._progress, self._now)


class _Second(Watcher):
    """The epochs of one comparison, in a bar that is there already."""

    def __init__(self, progress: Progress, bar: TaskID) -> None:
        self._progress, self._bar = progress, bar

    @contextmanager
    def training(self, cells: Sequence[Cell], done: int) -> Iterator[OnEpoch]:
        """Count epochs during a round of trainings."""
        total = sum(cell.recipe.epochs for cell in cells)
        finished: dict[str, int] = {}
        self._progress.update(self._bar, total=total or None, told=f"0/{total} epochs")

        def on_epoch(cell: Cell, epoch: int, latest: Latest | None) -> None:
            finished[cell.id] = epoch
            count = sum(finished.values())
            self._progress.update(
                self._bar, completed=count, told=f"{count}/{total} epochs"
            )

        yield on_epoch


class TalkingBar(Bar):
    """The bar of one comparison: it also says what is trained, was done, or tuned."""

    @contextmanager
    def training(self, cells: Sequence[Cell], done: int) -> Iterator[OnEpoch]:
        """Say how much is stored already, then show the bar."""
        if done:
            self._console.print(f"{done} of {done + len(cells)} trainings are done.")
        with super().training(cells, done) as on_epoch:
            yield on_epoch

    def _now(self, cell: Cell, latest: Latest | None) -> str:
        """Name the training in few words: task, methods, seeds and the last value."""
        more = ", ..." if len(cell.methods) > 1 else ""
        first, last = cell.seeds[0], cell.seeds[-1]
        seeds = f"seed {first}" if first == last else f"seeds {first} to {last}"
        value = "" if latest is None else f", {latest[0]} {latest[1]:.4g}"
        task = shortened(printable(cell.task), 32)
        return f"now {task}: {printable(cell.methods[0])}{more}, {seeds}{value}"

    def tuned(self, task: str, methods: Sequence[str]) -> None:
        """Name the options that tuning has chosen for a task."""
        told = f"Tuned for {task}: {', '.join(methods)}"
        self._console.print(escape(printable(told)), soft_wrap=True)
