"""Trains one cell with several workers on this machine."""

import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import (
    current_process,
    get_all_start_methods,
    get_context,
    parent_process,
    set_start_method,
)
from multiprocessing.connection import Connection, wait
from typing import Any

from torch.multiprocessing.spawn import (
    ProcessExitedException,
    ProcessRaisedException,
    start_processes,
)

from switch_ema.bench.execute.failures import explained
from switch_ema.bench.plan.cells import Cell
from switch_ema.bench.text import counted
from switch_ema.bench.train.context import RunContext
from switch_ema.bench.train.data_parallel import WorkerLost, train_as_worker
from switch_ema.bench.train.result import CellResult
from switch_ema.bench.train.values import OnProgress

RETRIES = 3
"""How often a training goes on from its checkpoint after a worker was lost."""

_POLL_SECONDS = 0.1
_START = "forkserver"
"""How workers are started; a process that has trained must not be forked."""


def train_in_group(cell: Cell, context: RunContext, progress: OnProgress) -> CellResult:
    """Train a cell in a group of workers; a lost worker costs at most one epoch."""
    for _ in range(RETRIES + 1):
        try:
            return _Group(cell, context, progress).run()
        except WorkerLost:
            continue
    return given_up(context.workers)


def given_up(workers: int) -> CellResult:
    """Return the result of a training whose workers die again and again."""
    times = counted(RETRIES + 1, "time")
    return CellResult("failed", f"one of its {workers} workers died, {times}")


class _Group:
    """Processes that train one cell together, one attempt."""

    def __init__(self, cell: Cell, context: RunContext, progress: OnProgress) -> None:
        self._progress = progress
        self._result: CellResult | None = None
        processes = get_context(_START)
        # The server imports this once, and torch with it, for all workers.
        processes.set_forkserver_preload([__name__])
        pipes = [processes.Pipe(duplex=False) for _ in range(context.workers)]
        self._ours = [ours for ours, _ in pipes]
        theirs = [theirs for _, theirs in pipes]
        arguments = (cell, context, _free_port(), theirs)
        with _quiet():
            self._context: Any = start_processes(  # type: ignore[no-untyped-call]
                _work,
                arguments,
                nprocs=context.workers,
                join=False,
                start_method=_START,
            )
        for connection in theirs:
            connection.close()

    def run(self) -> CellResult:
        """Wait for the result; the first worker has it, or one that has failed.

        Raises:
            WorkerLost: a worker has died.
        """
        try:
            while not self._context.join(timeout=_POLL_SECONDS, grace_period=1.0):
                self._listen()
        except (ProcessExitedException, ProcessRaisedException) as error:
            self._listen()
            if self._result is None or self._result.status != "failed":
                raise WorkerLost(str(error)) from None
        finally:
            for process in self._context.processes:
                process.kill()
        self._listen()
        if self._result is None:
            raise WorkerLost("the first worker has left without a result")
        return self._result

    def _listen(self) -> None:
        for connection in self._ours:
            try:
                while connection.poll():
                    self._hear(connection.recv())
            except (EOFError, OSError):
                continue

    def _hear(self, message: Any) -> None:
        if not isinstance(message, CellResult):
            self._progress(*message)
        elif self._result is None:  # later ones may only tell that another is gone
            self._result = message


def _work(
    rank: int,
    cell: Cell,
    context: RunContext,
    port: int,
    connections: Sequence[Connection],
) -> None:
    """Train as one of the workers; tell epochs and the result."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides about it
    allow_processes()
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(context.workers),
        "LOCAL_WORLD_SIZE": str(context.workers),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    connection = connections[rank]
    result = explained(
        train_as_worker, cell, context, lambda *told: connection.send(told)
    )
    if result is not None:
        connection.send(result)
        if result.status == "failed":
            sys.exit(1)  # so that the others are ended, too


def allow_processes() -> None:
    """Let a task start processes as it could outside of a worker, for a DataLoader.

    A worker stays a daemon to its parent, which ends it; to itself it is none, since
    daemons start no processes. A DataLoader's look whether their parent is there.
    """
    current_process().daemon = False
    # A spawned process would spawn its own, too, each importing everything anew.
    set_start_method(get_all_start_methods()[0], force=True)


def _leave_with_parent() -> None:
    """Stop working for a parent that was killed."""
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep torch's C++ part in new processes from warning of what we chose."""
    name = "TORCH_CPP_LOG_LEVEL"
    before = os.environ.get(name)
    os.environ.setdefault(name, "ERROR")
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
    return port
