"""One comparison from its configuration to its summary.

Plan, execute, store and summarise; nothing is shown here, a :class:`Watcher` is told.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from switch_ema.bench.errors import UsageError
from switch_ema.bench.execute.cells import train_cells
from switch_ema.bench.execute.failures import FAILURES
from switch_ema.bench.execute.local import OnEpoch
from switch_ema.bench.execute.options import RunOptions, check_trackers
from switch_ema.bench.execute.scripts import with_known_metric
from switch_ema.bench.plan.cells import Cell
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.plan.sweep_points import (
    SweepPoint,
    plan_points,
    sweep_points,
    trained,
)
from switch_ema.bench.results.folder import (
    INPUTS,
    RESULTS,
    Arithmetic,
    claim,
    locked,
    note_tuned,
    open_run,
    remove_leftovers,
    settle_arithmetic,
)
from switch_ema.bench.results.samples import save_samples
from switch_ema.bench.results.store import FINISHED, REPORTED, Results
from switch_ema.bench.spec import is_script
from switch_ema.bench.stats.summarize import summarize
from switch_ema.bench.stats.summary import ComparisonSummary
from switch_ema.bench.text import counted
from switch_ema.bench.train.checkpoints import forget
from switch_ema.bench.train.context import RunContext
from switch_ema.bench.tuning import check_tuning, tune, tuned_points


@dataclass(frozen=True)
class Comparison:
    """A comparison that has ended, or has been stopped."""

    folder: Path
    summary: ComparisonSummary
    """Of what has been trained."""
    error: BaseException | None = None
    """Why not everything has been trained: trainings that failed, or Ctrl-C."""


class Watcher:
    """Is told how a comparison goes on. This one does nothing."""

    @contextmanager
    def training(self, cells: Sequence[Cell], done: int) -> Iterator[OnEpoch]:
        """Surround a round of trainings; yield what is told of each epoch.

        Args:
            cells: what is going to be trained; empty if all is stored already.
            done: how many other trainings of the round are stored already.
        """
        yield lambda cell, epoch, latest: None

    def tuned(self, task: str, methods: Sequence[str]) -> None:
        """Hear which options tuning has chosen for a task."""


def plan_comparison(config: CompareConfig) -> list[Cell]:
    """Plan a comparison, and refuse what cannot be trained or tuned."""
    cells = plan_points(config, sweep_points(config))
    if config.tune:
        check_tuning(config, cells)
    return cells


def run_comparison(
    config: CompareConfig,
    options: RunOptions,
    *,
    cells: list[Cell] | None = None,
    watcher: Watcher | None = None,
    keeps_trajectory: bool = True,
    saves_every: float = 0.0,
) -> Comparison:
    """Train what is left of a comparison and summarise what there is.

    One training that fails does not stop the others. Failures and interrupts end the
    training, not the summary: they are in the result.

    Args:
        config: what is compared.
        options: how it is run.
        cells: the plan, as :func:`plan_comparison` makes it.
        watcher: is told how it goes on.
        keeps_trajectory: whether the weights of every epoch are kept where those of
            the last epoch are.
        saves_every: seconds between two checkpoints of a training, at least, where
            epochs are so short that writing them takes long.

    Raises:
        UsageError: the run folder cannot be used, or the plan cannot be trained.
    """
    check_trackers(options.track)
    cells = plan_comparison(config) if cells is None else cells
    folder = options.out / (options.name or config.default_name)
    error: BaseException | None = None
    with locked(folder), closing(Results(folder / RESULTS, create=True)) as results:
        points = sweep_points(config)
        claim(results, config, folder, points)
        remove_leftovers(folder)
        rest = _Runner(
            config,
            results,
            folder,
            options,
            watcher or Watcher(),
            sources=results.meta()["sources"],
            inputs=results.meta()[INPUTS],
            keeps_trajectory=keeps_trajectory,
            saves_every=saves_every,
            arithmetic=settle_arithmetic(
                results, options.threads, options.workers_per_training
            ),
        )
        try:
            if config.tune:
                points = rest.tune(cells)
                cells = plan_points(config, points)
            rest.train(cells)
        except (Exception, KeyboardInterrupt) as stopped:
            error = stopped
        every = trained(config, points)
        summary = summarize(every, results, folder.name, cells)
    return Comparison(folder, summary, error)


def summarize_run(folder: Path) -> ComparisonSummary:
    """Summarise what is stored of a run."""
    config, results = open_run(folder)
    with closing(results):
        return summarize(config, results, folder.name)


@dataclass(frozen=True)
class _Runner:
    """Trains what a run has not finished yet."""

    config: CompareConfig
    results: Results
    folder: Path
    options: RunOptions
    watcher: Watcher
    sources: str
    """Fingerprints of the tasks' files when the run began."""
    inputs: str
    """Those of other files that a script is given."""
    keeps_trajectory: bool
    saves_every: float
    arithmetic: Arithmetic

    def tune(self, cells: list[Cell]) -> list[SweepPoint]:
        """Choose, and return what is compared: the methods as typed, and as chosen."""
        chosen = tune(self.config, cells, self.results, self.train)
        points = tuned_points(self.config, chosen)
        note_tuned(self.results, trained(self.config, points), points)
        for task, methods in chosen.items():
            self.watcher.tuned(task, methods)
        return points

    def train(self, cells: list[Cell]) -> None:
        """Train the cells that are not finished and store each as it comes.

        Raises:
            UsageError: some have failed; it names them.
        """
        statuses = self.results.statuses()
        todo = [cell for cell in cells if statuses.get(cell.id) not in FINISHED]
        # Reversed, so that the first cell of a task is the one that stays.
        firsts = {
            cell.task: cell.id for cell in reversed(cells) if self._is_first(cell)
        }

        def context_of(cell: Cell) -> RunContext:
            return self._context(
                cell, measures_trivial=firsts.get(cell.task) == cell.id
            )

        failures: dict[str, list[Cell]] = {}
        with self.watcher.training(todo, len(cells) - len(todo)) as on_epoch:
            for cell, result in train_cells(
                todo,
                context_of,
                self.options.jobs,
                on_epoch,
                executor=self.options.executor,
                address=self.options.address,
                slurm=self.options.slurm,
                timeout=self.options.timeout,
            ):
                if is_script(cell.task):
                    known = self.results.meta().get(f"{REPORTED} of {cell.task}")
                    result = with_known_metric(result, self.config.metric, known)
                self.results.add(cell, result)
                save_samples(self.folder, cell.task, result.samples)
                if result.status == "failed":
                    failures.setdefault(result.message, []).append(cell)
                elif not self._is_kept(cell):
                    forget(self.folder, cell)
        if failures:
            told = _tell_failures(failures, len(todo))
            kept = self.folder / FAILURES
            raise UsageError(f"{told} (tracebacks: {kept})" if kept.is_dir() else told)

    def _context(self, cell: Cell, *, measures_trivial: bool) -> RunContext:
        return RunContext(
            self.folder.absolute(),  # a task may change the current folder
            self.options.device,
            self.options.track,
            self._is_kept(cell) and self.keeps_trajectory,
            self.sources,
            self.inputs,
            saves_every=self.saves_every,
            threads=self.arithmetic.threads,
            kernels=self.arithmetic.kernels,
            workers=self.arithmetic.workers,
            makes_samples=self._is_first(cell),
            measures_trivial=measures_trivial,
        )

    def _is_first(self, cell: Cell) -> bool:
        return cell.seeds[0] == self.config.first_seed

    def _is_kept(self, cell: Cell) -> bool:
        if self.options.keep_checkpoints == "first":
            return self._is_first(cell)
        return self.options.keep_checkpoints == "all"


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
