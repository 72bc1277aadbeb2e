"""Progress bars of a running comparison."""

from collections.abc import Callable, Iterable, Iterator, Sequence
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
    """Progress bars with a line of text below."""

    now = ""

    def get_renderables(self) -> Iterable[RenderableType]:
        """Return the bars, and the line if there is one."""
        yield from super().get_renderables()
        if self.now:
            yield Text(self.now, no_wrap=True, overflow="ellipsis")


class Bar(Watcher):
    """A bar of the finished epochs over all trainings."""

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
                total = None  # a script's number of epochs is unknown
            bar = progress.add_task("starting workers", total=total)

            def on_epoch(cell: Cell, epoch: int, latest: Latest | None) -> None:
                finished[cell.id] = epoch
                done = sum(finished.values())
                progress.now = self._now(cell, latest)
                title = escape(self._title)
                progress.update(bar, completed=done, description=title)

            yield on_epoch
            progress.now = ""  # leave only the bar on the screen
            if total is not None:  # controls may train for fewer epochs than planned
                progress.update(bar, completed=total)

    def _now(self, cell: Cell, latest: Latest | None) -> str:
        """Return the line below the bar after an epoch of this training."""
        return ""


@contextmanager
def parts_bar(console: Console) -> Iterator[Callable[[str, int, int], None]]:
    """Show a bar during an analysis; yield what names its part, done and total."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    # Elsewhere than in a terminal it would only leave an empty line.
    hidden = not console.is_terminal
    with Progress(
        *columns, console=console, transient=True, disable=hidden
    ) as progress:
        bar = progress.add_task("loading", total=None)

        def show(part: str, done: int, total: int) -> None:
            progress.update(
                bar,
                description=escape(printable(part)),
                completed=done,
                total=total,
                refresh=True,
            )

        yield show


class TwoBars:
    """One display for many comparisons: an overall bar and one for the current one.

    The overall bar counts seconds, because comparisons differ in length.
    """

    def __init__(self, console: Console, expected: float, done: float) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[status]}"),
        )
        self._progress = Progress(*columns, console=console)
        self._all = self._progress.add_task(
            "all", total=expected, completed=int(done), status=""
        )
        self._now = self._progress.add_task("", total=None, status="")

    def __enter__(self) -> "TwoBars":
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def begin(self, title: str, status: str) -> None:
        """Show the next comparison, and the overall state next to the first bar."""
        self._progress.update(self._all, status=status)
        self._progress.reset(
            self._now, description=escape(title), total=None, status="starting"
        )

    def end(self, expected: float, status: str) -> None:
        """Advance by the expected time of the finished comparison."""
        self._progress.update(self._all, advance=expected, status=status)

    def watcher(self) -> Watcher:
        """Return the watcher of the current comparison."""
        return _Second(self._progress, self._now)


class _Second(Watcher):
    """Shows the epochs of one comparison in an existing bar."""

    def __init__(self, progress: Progress, bar: TaskID) -> None:
        self._progress, self._bar = progress, bar

    @contextmanager
    def training(self, cells: Sequence[Cell], done: int) -> Iterator[OnEpoch]:
        """Count epochs during a round of trainings."""
        total = sum(cell.recipe.epochs for cell in cells)
        finished: dict[str, int] = {}
        self._progress.update(
            self._bar, total=total or None, status=f"0/{total} epochs"
        )

        def on_epoch(cell: Cell, epoch: int, latest: Latest | None) -> None:
            finished[cell.id] = epoch
            count = sum(finished.values())
            self._progress.update(
                self._bar, completed=count, status=f"{count}/{total} epochs"
            )

        yield on_epoch


class TalkingBar(Bar):
    """A bar that also reports the current training, stored results and tuning."""

    @contextmanager
    def training(self, cells: Sequence[Cell], done: int) -> Iterator[OnEpoch]:
        """Report how many trainings are stored, then show the bar."""
        if done:
            self._console.print(
                f"{done} of {done + len(cells)} trainings are already done."
            )
        with super().training(cells, done) as on_epoch:
            yield on_epoch

    def _now(self, cell: Cell, latest: Latest | None) -> str:
        """Describe the training: task, methods, seeds and latest value."""
        more = ", ..." if len(cell.methods) > 1 else ""
        first, last = cell.seeds[0], cell.seeds[-1]
        seeds = f"seed {first}" if first == last else f"seeds {first} to {last}"
        value = "" if latest is None else f", {latest[0]} {latest[1]:.4g}"
        task = shortened(printable(cell.task), 32)
        return f"now {task}: {printable(cell.methods[0])}{more}, {seeds}{value}"

    def looked(self, task: str, seeds: int, undecided: Sequence[str]) -> None:
        """Say after a look what is undecided."""
        rest = f"undecided: {', '.join(undecided)}" if undecided else "all settled"
        text = f"{task} after {seeds} seeds: {rest}."
        self._console.print(escape(printable(text)), soft_wrap=True)

    def tuned(self, task: str, methods: Sequence[str]) -> None:
        """Name the options that tuning has chosen for a task."""
        text = f"Tuned for {task}: {', '.join(methods)}"
        self._console.print(escape(printable(text)), soft_wrap=True)
