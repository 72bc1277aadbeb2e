"""Trains cells in worker processes on this machine."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
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
        return self

    def __exit__(self, *error: object) -> None:
        _end(self._workers)

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
                        why = f"its process died twice, {_how_it_died(worker.process)}"
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


def _end(workers: Sequence[_Worker]) -> None:
    """End workers; those that run scripts get time to end the script's processes."""
    for worker in workers:
        if worker.cell is not None and is_script(worker.cell.task):
            worker.process.terminate()
        else:
            worker.process.kill()
    for worker in workers:
        worker.process.join(timeout=_STOP_SECONDS)
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


def _how_it_died(process: BaseProcess) -> str:
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
    for number in (signal.SIGINT, signal.SIGHUP):  # the parent handles these
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


def _leave_with(parent: int) -> None:
    """Exit when the parent was killed; for systems without prctl."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)
