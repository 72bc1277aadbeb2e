"""Trains cells in worker processes on this machine."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import FrameType

from switch_ema.bench.execute.failures import explained
from switch_ema.bench.execute.guard import (
    GIVE_UP_SECONDS,
    GRACE_SECONDS,
    die_with_parent,
)
from switch_ema.bench.execute.local_workers import allow_processes, train_in_group
from switch_ema.bench.execute.placement import VISIBLE
from switch_ema.bench.execute.scripts import run_script
from switch_ema.bench.loaders import CORES, usable_cores
from switch_ema.bench.plan.cells import Cell
from switch_ema.bench.spec import is_script
from switch_ema.bench.train.context import RunContext
from switch_ema.bench.train.loop import train_cell
from switch_ema.bench.train.result import CellResult
from switch_ema.bench.train.values import Latest, OnProgress

_STOP_SECONDS = GRACE_SECONDS + GIVE_UP_SECONDS + 5
"""Seconds that the worker of a script has to stop."""
_SAVE_SECONDS, _SAVE_SECONDS_AT_ONCE = 25.0, 5.0
"""Seconds that a training has to save its state: after SIGTERM, which Slurm follows by
SIGKILL after 30, and after Ctrl-C, when somebody is waiting."""

OnEpoch = Callable[[Cell, int, Latest | None], None]
"""Callback with a cell, its finished epochs, and its latest value, if any."""


def train_or_explain(
    cell: Cell, context: RunContext, progress: OnProgress
) -> CellResult:
    """Train one cell, with one or several workers; exceptions become failed results."""
    train = train_cell if context.workers == 1 else train_in_group
    if is_script(cell.task):
        train = run_script
    return explained(train, cell, context, progress)


@dataclass
class _Worker:
    process: BaseProcess
    connection: Connection
    place: str | None = None
    """GPUs that it sees, as ``CUDA_VISIBLE_DEVICES`` names them; None: all."""
    cell: Cell | None = None
    heard: float = field(default_factory=time.monotonic)
    """When it got its cell or last reported an epoch."""


class Pool:
    """Processes that each train one cell at a time.

    Not a concurrent.futures pool: a lost worker must cost only its own cell, and
    workers report each epoch they finish.

    Args:
        places: the GPUs that each process sees; None for all of them.
        timeout: seconds without a finished epoch after which a training fails.
    """

    def __init__(
        self, places: Sequence[str | None], timeout: float | None = None
    ) -> None:
        self._context = get_context("spawn")
        self._timeout = timeout
        self._cores = max(1, usable_cores() // len(places))
        self._workers = [self._start(place) for place in places]

    def __enter__(self) -> "Pool":
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGUSR1, self._save)
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGUSR1, self._before)
        is_terminated = getattr(error, "args", ())[:1] == (signal.SIGTERM,)
        seconds = _SAVE_SECONDS if is_terminated else _SAVE_SECONDS_AT_ONCE
        _end(self._workers, seconds)

    def _save(self, number: int, frame: FrameType | None) -> None:
        """Let every training save its state and go on."""
        for worker in self._workers:
            if worker.cell is not None and worker.process.pid is not None:
                with suppress(ProcessLookupError):
                    os.kill(worker.process.pid, number)

    def _start(self, place: str | None) -> _Worker:
        ours, theirs = self._context.Pipe()
        arguments = (theirs, os.getpid(), place, self._cores)
        process = self._context.Process(target=_work, args=arguments, daemon=True)
        process.start()
        theirs.close()
        return _Worker(process, ours, place)

    def run(
        self,
        cells: Sequence[Cell],
        context_of: Callable[[Cell], RunContext],
        on_epoch: OnEpoch,
    ) -> Iterator[tuple[Cell, CellResult]]:
        """Distribute the cells and yield their results; a lost cell gets one retry."""
        waiting = list(reversed(cells))
        lost: dict[str, int] = {}
        while waiting or any(worker.cell for worker in self._workers):
            for worker in self._workers:
                if worker.cell is None and waiting:
                    worker.cell, worker.heard = waiting.pop(), time.monotonic()
                    try:
                        worker.connection.send((worker.cell, context_of(worker.cell)))
                    except OSError:  # it died while idle; the wait below notices
                        waiting.append(worker.cell)
                        worker.cell = None
            for worker in self._ready():
                cell = worker.cell
                try:
                    message = worker.connection.recv()
                except (EOFError, OSError):
                    self._replace(worker)
                    if cell is None:
                        continue
                    lost[cell.id] = lost.get(cell.id, 0) + 1
                    if lost[cell.id] < 2:
                        waiting.append(cell)
                    else:
                        why = f"its process died twice, {how_it_died(worker.process)}"
                        yield cell, CellResult("failed", why)
                    continue
                worker.heard = time.monotonic()
                if cell is not None and isinstance(message, CellResult):
                    worker.cell = None
                    yield cell, message
                elif cell is not None:
                    on_epoch(cell, *message)
            for worker in self._silent():
                _end([worker])
                self._replace(worker)
                if worker.cell is not None:
                    why = f"no epoch was finished within {self._timeout:g} s"
                    yield worker.cell, CellResult("failed", why)

    def _ready(self) -> list[_Worker]:
        """Wait for workers that have sent a message or died."""
        seconds = None if self._timeout is None else min(1.0, self._timeout / 4)
        found = wait([worker.connection for worker in self._workers], seconds)
        return [worker for worker in self._workers if worker.connection in found]

    def _silent(self) -> list[_Worker]:
        if self._timeout is None:
            return []
        earliest = time.monotonic() - self._timeout
        return [w for w in self._workers if w.cell is not None and w.heard < earliest]

    def _replace(self, worker: _Worker) -> None:
        worker.connection.close()
        self._workers[self._workers.index(worker)] = self._start(worker.place)


def _end(workers: Sequence[_Worker], save_seconds: float = 0.0) -> None:
    """End workers; trainings first save their state, and scripts end their processes.

    Args:
        workers: the workers.
        save_seconds: how long trainings may take to save; 0 for those that hang.
    """
    seconds = save_seconds
    for worker in workers:
        cell = worker.cell
        if cell is not None and is_script(cell.task):
            seconds = max(seconds, _STOP_SECONDS)
        if cell is not None and (save_seconds or is_script(cell.task)):
            worker.process.terminate()
        else:
            worker.process.kill()
    until = time.monotonic() + seconds
    for worker in workers:
        try:
            worker.process.join(timeout=max(0.0, until - time.monotonic()))
        except KeyboardInterrupt:  # a second Ctrl-C: do not wait for the others
            until = time.monotonic()
        worker.process.kill()  # the guard of its script finishes without it
        worker.process.join()


class _Stopped(BaseException):
    """Raised in a worker to end its script."""


@contextmanager
def _stoppable() -> Iterator[None]:
    """Make SIGTERM end the script first, then this process."""

    def stop(number: int, frame: FrameType | None) -> None:
        # A second SIGTERM must not interrupt the clean-up.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise _Stopped

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def how_it_died(process: BaseProcess) -> str:
    """Describe the end of a process, by signal or exit code."""
    process.join(timeout=5)  # its pipe closes slightly before it exits
    code = process.exitcode or 0
    if code < 0:
        return f"by signal {-code} (9: often out of memory)"
    return f"with exit code {code}"


def _work(connection: Connection, parent: int, place: str | None, cores: int) -> None:
    """Train the cells that the parent sends, until it is gone."""
    os.environ[CORES] = str(cores)
    if place is not None:  # before this process uses a GPU
        os.environ[VISIBLE] = place
    # The parent handles these. A training saves its state on SIGUSR1; none runs yet.
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    die_with_parent(parent)
    allow_processes()
    threading.Thread(target=_leave_with, args=(parent,), daemon=True).start()
    while True:
        try:
            cell, context = connection.recv()
            with _stoppable() if is_script(cell.task) else nullcontext():
                result = train_or_explain(
                    cell, context, lambda *event: connection.send(event)
                )
            connection.send(result)
        except (EOFError, OSError, _Stopped):
            return
        except KeyboardInterrupt:  # SIGTERM, and the training has saved its state
            sys.exit(128 + signal.SIGTERM)


def _leave_with(parent: int) -> None:
    """Exit when the parent was killed; for systems without prctl."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)
