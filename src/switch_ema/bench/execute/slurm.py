"""Trains cells as Slurm jobs through submitit, with one Slurm task per worker.

The run folder must be on storage that all nodes share, as submitit requires.
"""

import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import submitit
from submitit.core.utils import FailedJobError, UncompletedJobError
from submitit.helpers import DelayedSubmission, TorchDistributedEnvironment

from switch_ema.bench.errors import UsageError
from switch_ema.bench.execute.failures import TrainingFailed, train_or_raise
from switch_ema.bench.execute.local import OnEpoch
from switch_ema.bench.execute.local_workers import RETRIES, given_up
from switch_ema.bench.execute.options import job_options
from switch_ema.bench.execute.placement import cores_of
from switch_ema.bench.loaders import CORES
from switch_ema.bench.plan.cells import Cell
from switch_ema.bench.train.checkpoints import values_path
from switch_ema.bench.train.context import RunContext
from switch_ema.bench.train.data_parallel import WorkerLost, train_as_worker
from switch_ema.bench.train.loop import train_cell
from switch_ema.bench.train.result import CellResult
from switch_ema.bench.train.values import read_progress

JOBS = "slurm"
"""Subfolder of a run with the files of its jobs, including their output."""

POLL_SECONDS = 1.0
_MINUTES = 24 * 60
_SIGNAL_SECONDS = 180
_TIMEOUTS = 100
"""How often a job that reaches its time limit is requeued."""


@dataclass(frozen=True)
class _SlurmTask:
    """The work of each task of a job."""

    cell: Cell
    context: RunContext
    home: str
    """The current folder; a task's file may be relative to it."""
    cores: int

    def __call__(self) -> CellResult | None:
        """Train, alone or as one of several workers."""
        os.chdir(self.home)
        os.environ[CORES] = str(self.cores)
        train: Callable[..., CellResult | None] = train_cell
        if self.context.workers > 1:
            # Accelerate selects each worker's GPU, so all must stay visible.
            environment = TorchDistributedEnvironment()
            environment.export(set_cuda_visible_devices=False, overwrite=True)
            train = train_as_worker
        try:
            return train_or_raise(train, self.cell, self.context, lambda *now: None)
        except KeyboardInterrupt:  # requeued, after the training saved its state
            sys.exit(128 + signal.SIGTERM)

    def checkpoint(self) -> DelayedSubmission:
        """Requeue after a timeout or preemption, to resume from the checkpoint.

        submitit calls it from its signal handler, which the training holds back until
        it has saved its state: see :class:`HeldSignals`.
        """
        return DelayedSubmission(self)


@dataclass
class _Running:
    job: Any
    cell: Cell
    context: RunContext
    attempts: int = 1
    reported: int = 0
    """Epochs reported so far."""

    def report(self, on_epoch: OnEpoch) -> None:
        path = values_path(self.context.folder, self.cell)
        epochs, latest = read_progress(path, self.cell.methods[0])
        if epochs > self.reported:
            self.reported = epochs
            on_epoch(self.cell, epochs, latest)

    def result(self) -> CellResult:
        """Return the result of the first task, or the failure of another one.

        Raises:
            WorkerLost: a task died.
        """
        reasons = []
        for number in range(self.context.workers):
            try:
                result = self.job.task(number).result()
            except (FailedJobError, UncompletedJobError) as error:
                reasons.append(str(error))
                continue
            if number == 0 and result is not None:
                found: CellResult = result
                return found
        mark = f"{TrainingFailed.__name__}: "
        for line in (line for reason in reasons for line in reason.splitlines()):
            if mark in line:
                return CellResult("failed", line.partition(mark)[2])
        raise WorkerLost(reasons[0] if reasons else "no task has a result")


def train_on_slurm(
    cells: Sequence[Cell],
    context_of: Callable[[Cell], RunContext],
    jobs: int,
    on_epoch: OnEpoch,
    options: Sequence[str] = (),
) -> Iterator[tuple[Cell, CellResult]]:
    """Yield each cell with its result as it finishes; failures are results, too.

    At most ``jobs`` jobs are queued at once, unless that is 0. If the caller stops, the
    remaining jobs are cancelled.
    """
    contexts = {cell.id: _absolute(context_of(cell)) for cell in cells}
    # One executor for all cells, so the largest of them counts.
    cores = max(cores_of(cell, contexts[cell.id]) for cell in cells)
    executor = _executor(contexts[cells[0].id], cores, options)
    waiting, running = deque(cells), list[_Running]()

    def submit(cell: Cell) -> Any:
        work = _SlurmTask(cell, contexts[cell.id], os.getcwd(), cores)
        try:
            return executor.submit(work)
        except (FailedJobError, OSError) as error:
            raise UsageError(f"Slurm rejected the job: {_one_line(error)}.") from None

    try:
        while waiting or running:
            while waiting and (jobs == 0 or len(running) < jobs):
                cell = waiting.popleft()
                running.append(_Running(submit(cell), cell, contexts[cell.id]))
            time.sleep(POLL_SECONDS)
            for one in list(running):
                one.report(on_epoch)
                if not one.job.done():
                    continue
                try:
                    result = one.result()
                except WorkerLost:
                    if one.attempts <= RETRIES:
                        one.job, one.attempts = submit(one.cell), one.attempts + 1
                        continue
                    result = given_up(one.context.workers)
                running.remove(one)
                yield one.cell, result
    finally:
        for one in running:
            one.job.cancel(check=False)


def _executor(context: RunContext, cores: int, options: Sequence[str]) -> Any:
    """Create the executor that submits jobs; the user's options override ours.

    Args:
        context: run context of a cell.
        cores: cores of each worker.
        options: options of the user, as ``name=value``.
    """
    wanted: dict[str, Any] = {
        "name": "switch-ema",
        "nodes": 1,
        "tasks_per_node": context.workers,
        "cpus_per_task": cores,
        "timeout_min": _MINUTES,
        # Seconds before the end at which a job is told to save its state.
        "slurm_signal_delay_s": _SIGNAL_SECONDS,
        "slurm_additional_parameters": {"requeue": True},
        # A failed task ends the others, which would wait for it forever.
        "slurm_srun_args": ["--kill-on-bad-exit"],
    }
    if context.device != "cpu":
        wanted["gpus_per_node"] = context.workers
    given = job_options(options)
    cluster = str(given.pop("cluster", "slurm"))
    wanted |= given
    if wanted["nodes"] * wanted["tasks_per_node"] != context.workers:
        raise UsageError(
            f"slurm: nodes x tasks_per_node must equal the {context.workers} workers "
            f"of a training, got {wanted['nodes']} x {wanted['tasks_per_node']}."
        )
    try:
        executor = submitit.AutoExecutor(
            folder=context.folder / JOBS,
            cluster=cluster,
            slurm_max_num_timeout=_TIMEOUTS,
        )
        executor.update_parameters(**wanted)
    except (AssertionError, NameError, RuntimeError, TypeError, ValueError) as error:
        raise UsageError(f"Slurm cannot be used: {_one_line(error)}.") from None
    return executor


def _absolute(context: RunContext) -> RunContext:
    return replace(context, folder=context.folder.resolve())


def _one_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0].rstrip(".")
