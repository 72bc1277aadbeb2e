"""Trains cells on this machine, in processes of its own."""

import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import (
    current_process,
    get_all_start_methods,
    get_context,
    set_start_method,
)
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from switch_ema.bench.errors import UsageError
from switch_ema.bench.plan.cells import Cell
from switch_ema.bench.spec import is_file, parse_task
from switch_ema.bench.tasks.loading import explain
from switch_ema.bench.train.loop import CellResult, Place, train_cell

OnEpoch = Callable[[Cell, int], None]
"""Told a cell and the epochs it has finished."""


def train_or_explain(
    cell: Cell, place: Place, progress: Callable[[int], None]
) -> CellResult:
    """Train one cell; what goes wrong is told in the result."""
    try:
        return train_cell(cell, place, progress)
    except UsageError as error:
        return CellResult(status="failed", message=str(error))
    except OSError as error:
        return CellResult(status="failed", message=f"{type(error).__name__}: {error}")
    except (Exception, SystemExit) as error:
        return CellResult(status="failed", message=_describe(error, cell))


def _describe(error: BaseException, cell: Cell) -> str:
    """Tell an exception in one line: where in the user's file, or else in ours."""
    spec = parse_task(cell.task)
    if is_file(spec):
        return str(explain(error, spec.name.rpartition(":")[0]))
    frame = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{frame.filename}, line {frame.lineno}"
    return f"{place}: {type(error).__name__}: {error}".replace("\n", " ")


@dataclass
class _Worker:
    process: BaseProcess
    connection: Connection
    cell: Cell | None = None


class _Pool:
    """Processes that each train one cell at a time.

    Written by hand because a lost worker must cost just the cell it was training,
    and because every worker reports the epochs it finishes.
    """

    def __init__(self, jobs: int) -> None:
        self._context = get_context("spawn")
        self._threads = max(1, (os.cpu_count() or 1) // jobs)
        self._workers = [self._start() for _ in range(jobs)]

    def __enter__(self) -> "_Pool":
        return self

    def __exit__(self, *error: object) -> None:
        for worker in self._workers:
            worker.process.terminate()
        for worker in self._workers:
            worker.process.join()

    def _start(self) -> _Worker:
        ours, theirs = self._context.Pipe()
        arguments = (theirs, self._threads, os.getpid())
        process = self._context.Process(target=_work, args=arguments, daemon=True)
        process.start()
        theirs.close()
        return _Worker(process, ours)

    def run(
        self,
        cells: Sequence[Cell],
        place: Callable[[Cell], Place],
        on_epoch: OnEpoch,
    ) -> Iterator[tuple[Cell, CellResult]]:
        """Hand the cells out and yield their results."""
        waiting = list(reversed(cells))
        lost: dict[str, int] = {}
        while waiting or any(worker.cell for worker in self._workers):
            for worker in self._workers:
                if worker.cell is None and waiting:
                    worker.cell = waiting.pop()
                    worker.connection.send((worker.cell, place(worker.cell)))
            for connection in wait([w.connection for w in self._workers]):
                worker = next(w for w in self._workers if w.connection is connection)
                cell = worker.cell
                try:
                    message = worker.connection.recv()
                except (EOFError, OSError):
                    self._workers[self._workers.index(worker)] = self._start()
                    if cell is not None:
                        lost[cell.id] = lost.get(cell.id, 0) + 1
                        if lost[cell.id] < 2:
                            waiting.append(cell)
                        else:
                            how = _how_it_died(worker.process)
                            why = f"its process died twice, {how}"
                            yield cell, CellResult("failed", why)
                    continue
                if cell is not None and isinstance(message, CellResult):
                    worker.cell = None
                    yield cell, message
                elif cell is not None:
                    on_epoch(cell, message)


def _how_it_died(process: BaseProcess) -> str:
    process.join(timeout=5)  # its end of the pipe closes a moment before
    code = process.exitcode or 0
    if code < 0:
        return f"by signal {-code} (9: often for want of memory)"
    return f"with exit code {code}"


def _work(connection: Connection, threads: int, parent: int) -> None:
    """Train what comes in until the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides about Ctrl-C
    _allow_processes()
    torch.set_num_threads(threads)
    threading.Thread(target=_leave_with, args=(parent,), daemon=True).start()
    while True:
        try:
            cell, place = connection.recv()
            connection.send(train_or_explain(cell, place, connection.send))
        except (EOFError, OSError):
            return


def _allow_processes() -> None:
    """Let a task start processes as it could outside of a worker, for a DataLoader.

    A worker stays a daemon to its parent, which ends it; to itself it is none, since
    daemons start no processes. A DataLoader's look whether their parent is there.
    """
    current_process().daemon = False
    # A spawned process would spawn its own, too, each importing everything anew.
    set_start_method(get_all_start_methods()[0], force=True)


def _leave_with(parent: int) -> Any:
    """Stop working for a parent that was killed."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)
