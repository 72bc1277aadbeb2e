"""Runs one comparison, from its configuration to its summary.

Plans, trains, stores and summarises. Displays nothing; a :class:`Watcher` receives the
progress.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from switch_ema.bench.errors import UsageError
from switch_ema.bench.execute.cells import train_cells
from switch_ema.bench.execute.failures import FAILURES
from switch_ema.bench.execute.local import OnEpoch
from switch_ema.bench.execute.options import RunOptions, check_trackers
from switch_ema.bench.execute.scripts import with_known_metric
from switch_ema.bench.loading import load_task_class
from switch_ema.bench.plan.cells import Cell, labels_of
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.plan.sweep_points import (
    SweepPoint,
    plan_points,
    sweep_points,
    trained,
)
from switch_ema.bench.results.evidence import open_results
from switch_ema.bench.results.folder import (
    INPUTS,
    RESULTS,
    Arithmetic,
    claim,
    locked,
    note_tuned,
    remove_leftovers,
    run_folder,
    settle_arithmetic,
)
from switch_ema.bench.results.looks import load_looks, note_looks, up_to_looks
from switch_ema.bench.results.samples import save_samples
from switch_ema.bench.results.store import FINISHED, ORIGIN, REPORTED, TRAINED, Results
from switch_ema.bench.spec import is_script
from switch_ema.bench.stats.paired import LEVEL
from switch_ema.bench.stats.sequential import look_after
from switch_ema.bench.stats.summarize import summarize
from switch_ema.bench.stats.summary import ComparisonSummary
from switch_ema.bench.text import counted
from switch_ema.bench.train.checkpoints import forget
from switch_ema.bench.train.context import RunContext
from switch_ema.bench.train.result import CellResult
from switch_ema.bench.tuning import check_tuning, tune, tuned_points


@dataclass(frozen=True)
class Comparison:
    """A comparison that has finished or was stopped."""

    folder: Path
    summary: ComparisonSummary
    """Summary of what has been trained."""
    error: BaseException | None = None
    """Why training is incomplete: failed trainings, or Ctrl-C."""


class TrainingsFailed(UsageError):
    """Raised after the trainings of a comparison if some failed."""

    def __init__(self, message: str, cells: Sequence[Cell]) -> None:
        super().__init__(message)
        self.cells = tuple(cells)


class Watcher:
    """Receives progress events of a comparison; this one ignores them."""

    @contextmanager
    def training(self, cells: Sequence[Cell], done: int) -> Iterator[OnEpoch]:
        """Surround a round of trainings; yield the callback for finished epochs.

        Args:
            cells: cells to train; empty if all are stored already.
            done: number of the round's cells that are stored already.
        """
        yield lambda cell, epoch, latest: None

    def tuned(self, task: str, methods: Sequence[str]) -> None:
        """Receive the methods that tuning chose for a task."""

    def looked(self, task: str, seeds: int, undecided: Sequence[str]) -> None:
        """Receive what is undecided after a look at a task."""


def plan_comparison(config: CompareConfig) -> list[Cell]:
    """Plan a comparison; refuse settings that cannot be trained or tuned."""
    cells = plan_points(config, sweep_points(config))
    if config.tune:
        check_tuning(config, cells)
    return cells


def first_look(config: CompareConfig) -> CompareConfig:
    """Return the configuration of the first look, if seeds are added until decided.

    With fewer seeds nothing can be decided. The rounds of a stored configuration are
    dropped, to be repeated one by one.
    """
    if not config.until_decided:
        return config
    methods = _judged(config)
    least = look_after(0, methods, config.round, LEVEL)
    if config.max_seeds < least:
        raise UsageError(
            f"max_seeds must be at least {least} with until_decided, rounds of "
            f"{config.round} and {counted(methods, 'method')} to judge, as fewer seeds "
            f"decide nothing; got {config.max_seeds}."
        )
    start = config.rounds[0] if config.rounds else config.seeds
    return replace(config, seeds=max(start, least), rounds=())


def run_comparison(
    config: CompareConfig,
    options: RunOptions,
    *,
    cells: list[Cell] | None = None,
    watcher: Watcher | None = None,
    keeps_trajectory: bool = True,
    saves_every: float = 0.0,
) -> Comparison:
    """Train the unfinished cells of a comparison and summarise all results.

    If the run folder has fewer seeds, the others are added; if it has more, all are
    kept. With ``until_decided``, seeds are added to each task until it is settled. A
    failed training does not stop the others, unless it is a script's and
    ``options.keep_going`` is false. Failures and interrupts are returned in the result,
    together with the summary.

    Args:
        config: the comparison.
        options: how to run it.
        cells: the plan made by :func:`plan_comparison`.
        watcher: receives progress events.
        keeps_trajectory: whether to save the weights of every epoch, for cells that
            keep their last weights.
        saves_every: minimum seconds between checkpoints of a training, for epochs
            shorter than it takes to write one.

    Raises:
        UsageError: the run folder cannot be used, or the plan cannot be trained.
    """
    check_trackers(options.track)
    if config.seeds < first_look(config).seeds:
        config, cells = first_look(config), None
    cells = plan_comparison(config) if cells is None else cells
    folder = run_folder(config, options.out, options.name)
    error: BaseException | None = None
    with locked(folder), closing(Results(folder / RESULTS, create=True)) as results:
        points = sweep_points(config)
        claimed = claim(results, config, folder, points)
        if claimed != config:
            config, cells = claimed, plan_comparison(claimed)
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
            if config.until_decided:
                rest.train_until_decided()
            else:
                rest.train(cells)
        except (Exception, KeyboardInterrupt) as stopped:
            error = stopped
        if config.until_decided:
            config, cells = _stored_config(results), None
        every = trained(config, points)
        summary = summarize(every, results, folder.name, cells)
    return Comparison(folder, summary, error)


def _stored_config(results: Results) -> CompareConfig:
    return CompareConfig.from_json(results.meta()["config"])


def summarize_run(path: Path) -> ComparisonSummary:
    """Summarise the stored results of a run folder or an evidence file."""
    config, results = open_results(path)
    with closing(results):
        return summarize(config, results, path.stem if path.is_file() else path.name)


@dataclass(frozen=True)
class _Runner:
    """Trains the unfinished cells of a run."""

    config: CompareConfig
    results: Results
    folder: Path
    options: RunOptions
    watcher: Watcher
    sources: str
    """Fingerprints of the task files when the run started."""
    inputs: str
    """Fingerprints of a script's other input files."""
    keeps_trajectory: bool
    saves_every: float
    arithmetic: Arithmetic

    def tune(self, cells: list[Cell]) -> list[SweepPoint]:
        """Tune, and return the points to compare: methods as typed and as chosen."""
        chosen = tune(self.config, cells, self.results, self.train)
        points = tuned_points(self.config, chosen)
        note_tuned(self.results, trained(self.config, points), points)
        for task, methods in chosen.items():
            self.watcher.tuned(task, methods)
        return points

    def train_until_decided(self) -> None:
        """Train in rounds; a task gets no more seeds once it is settled.

        Looks are stored before they are trained, so that a killed run goes on as if it
        had not been.
        """
        config, looks = self.config, load_looks(self.results.meta())
        if config.seeds > max((own[-1] for own in looks.values()), default=0):
            looks = {
                task: (*looks.get(task, ()), config.seeds) for task in config.tasks
            }
        trained_now = set(config.tasks)
        while True:
            note_looks(self.results, looks)
            most = max(own[-1] for own in looks.values())
            config = claim(self.results, replace(config, seeds=most), self.folder)
            cells = up_to_looks(plan_comparison(config), looks, config.first_seed)
            replace(self, inputs=self.results.meta()[INPUTS]).train(cells)
            summary = summarize(config, self.results, self.folder.name, cells)
            going = []
            for task in summary.tasks:
                seeds = looks[task.task][-1]
                undecided = task.unsettled(config.settle)
                if task.task in trained_now:
                    self.watcher.looked(task.task, seeds, undecided)
                if undecided and seeds < config.max_seeds:
                    going.append(task.task)
            if not going:
                return
            trained_now = set(going)
            looks |= {
                task: (*looks[task], _next_look(config, looks[task][-1]))
                for task in going
            }

    def train(self, cells: list[Cell]) -> None:
        """Train the unfinished cells and store each one as it finishes.

        Raises:
            TrainingsFailed: trainings failed; the message names them.
        """
        statuses = self.results.statuses()
        todo = [cell for cell in cells if statuses.get(cell.id) not in FINISHED]
        # Reversed, so that the first cell of each task wins.
        firsts = {
            cell.task: cell.id for cell in reversed(cells) if self._is_first(cell)
        }

        def context_of(cell: Cell) -> RunContext:
            return self._context(
                cell, measures_trivial=firsts.get(cell.task) == cell.id
            )

        starts = self._declared_starts(todo)
        failures: dict[str, list[Cell]] = {}
        left = len(todo)
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
                result = _with_start(result, starts.get(cell.task, ""))
                self.results.add(cell, result)
                left -= 1
                save_samples(self.folder, cell.task, result.samples)
                if result.status == "failed":
                    failures.setdefault(result.message, []).append(cell)
                    if is_script(cell.task) and not self.options.keep_going:
                        break  # an error in a script is rarely that of one seed
                elif not self._is_kept(cell):
                    forget(self.folder, cell)
        if failures:
            message = _describe_failures(failures, len(todo) - left)
            if left:
                message = f"{message}; {_remaining(left)}"
            kept = self.folder / FAILURES
            if kept.is_dir():
                message = f"{message} (tracebacks: {kept})"
            raise TrainingsFailed(message, [c for f in failures.values() for c in f])

    def _declared_starts(self, cells: Sequence[Cell]) -> dict[str, str]:
        """Return the initial weights of tasks that declare them, by task.

        Raises:
            UsageError: weights are missing, or stored trainings started from others.
        """
        meta, starts = self.results.meta(), {}
        for task in dict.fromkeys(cell.task for cell in cells):
            if is_script(task):
                continue
            task_class, spec = load_task_class(task)
            start = task_class.start_for(spec.options)
            known = meta.get(f"{ORIGIN} of {task}", start)
            if start and start != known:
                raise UsageError(
                    f"the initial weights of {task} in {self.folder} are: {known}; "
                    f"here they would be: {start}; use the same weights, or another "
                    "--name or --out."
                )
            starts[task] = start
        return starts

    def _context(self, cell: Cell, *, measures_trivial: bool) -> RunContext:
        return RunContext(
            self.folder.absolute(),  # a task may change the current folder
            self.options.device,
            self.options.track,
            self._is_kept(cell) and self.keeps_trajectory,
            self.sources,
            self.inputs,
            saves_every=self.saves_every,
            readers=self.options.readers,
            skip_broken=self.options.skip_broken,
            checkpoint_every=self.options.checkpoint_seconds,
            threads=self.arithmetic.threads,
            kernels=self.arithmetic.kernels,
            workers=self.arithmetic.workers,
            makes_samples=self._is_first(cell),
            measures_trivial=measures_trivial,
            keep=self.options.keep or "none",
            commit=self.results.meta().get("environment.git", ""),
            precision=self._trained_precision(cell),
        )

    def _trained_precision(self, cell: Cell) -> str | None:
        trained_so_far = self.results.meta().get(f"{TRAINED} of {cell.task}")
        if trained_so_far is None:
            return None
        return str(json.loads(trained_so_far).get("Precision", ""))

    def _is_first(self, cell: Cell) -> bool:
        return cell.seeds[0] == self.config.first_seed

    def _is_kept(self, cell: Cell) -> bool:
        if self.options.keep_checkpoints == "first":
            return self._is_first(cell)
        return self.options.keep_checkpoints == "all"


def _with_start(result: CellResult, start: str) -> CellResult:
    """Fail a training that did not start as declared, as on another machine."""
    if result.status == "failed" or not start or result.origin == start:
        return result
    message = f"its initial weights were: {result.origin}; not: {start}"
    return CellResult(status="failed", message=message)


def _remaining(number: int) -> str:
    """Say what becomes of the trainings after the one that failed."""
    verb = "is" if number == 1 else "are"
    return (
        f"{counted(number, 'training')} {verb} left: repair the script and repeat the "
        "command, or add --keep-going"
    )


def _judged(config: CompareConfig) -> int:
    """Count the comparisons that seeds are added for."""
    return len(labels_of(config)) - 1 if config.settle == "every" else 1


def _next_look(config: CompareConfig, seeds: int) -> int:
    """Return the number of seeds of a task's next look."""
    after = look_after(seeds, _judged(config), config.round, LEVEL)
    look = min(config.max_seeds, after)
    # A task that is behind the others joins their rounds, whose seeds may be stacked.
    return min((n for n in (*config.rounds, config.seeds) if n >= look), default=look)


def _describe_failures(failures: Mapping[str, Sequence[Cell]], trained: int) -> str:
    """List the failed trainings, each message once."""
    reasons = []
    for message, cells in failures.items():
        more = f" and {counted(len(cells) - 1, 'other')}" if len(cells) > 1 else ""
        reasons.append(f"{cells[0]}{more}: {message}")
    number = sum(map(len, failures.values()))
    if trained == 1:
        return reasons[0]
    return f"{number} of {counted(trained, 'training')} failed: {'; '.join(reasons)}"
