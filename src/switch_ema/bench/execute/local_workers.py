"""Trains one cell with several data-parallel workers on this machine."""

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
from types import FrameType
from typing import Any

from torch.multiprocessing.spawn import (
    ProcessExitedException,
    ProcessRaisedException,
    start_processes,
)

from switch_ema.bench.execute.failures import explained
from switch_ema.bench.loaders import CORES, usable_cores
from switch_ema.bench.plan.cells import Cell
from switch_ema.bench.text import counted
from switch_ema.bench.train.context import RunContext
from switch_ema.bench.train.data_parallel import WorkerLost, train_as_worker
from switch_ema.bench.train.result import CellResult
from switch_ema.bench.train.values import OnProgress

RETRIES = 3
"""How often a training resumes from its checkpoint after losing a worker."""

_POLL_SECONDS = 0.1
_START = "forkserver"
"""Start method of workers; forking a process after training can deadlock."""


def train_in_group(cell: Cell, context: RunContext, progress: OnProgress) -> CellResult:
    """Train a cell in a group of workers; a lost worker costs at most one epoch."""
    for _ in range(RETRIES + 1):
        try:
            return _Group(cell, context, progress).run()
        except WorkerLost:
            continue
    return given_up(context.workers)


def given_up(workers: int) -> CellResult:
    """Return the failed result of a training that lost workers too often."""
    times = counted(RETRIES + 1, "time")
    return CellResult("failed", f"one of its {workers} workers died, {times}")


class _Group:
    """One attempt of several processes to train one cell together."""

    def __init__(self, cell: Cell, context: RunContext, progress: OnProgress) -> None:
        self._progress = progress
        self._result: CellResult | None = None
        processes = get_context(_START)
        # The fork server imports this module, and torch, once for all workers.
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
        self._first: Any = self._context.processes[0]
        self._is_stopped = False

    def run(self) -> CellResult:
        """Wait for the result of rank 0, or of a worker that failed.

        Raises:
            WorkerLost: a worker died.
        """
        try:
            with self._forwarding():
                while not self._context.join(timeout=_POLL_SECONDS, grace_period=1.0):
                    self._listen()
                    self._leave_if_stopped()
        except (ProcessExitedException, ProcessRaisedException) as error:
            self._listen()
            self._leave_if_stopped()
            if self._result is None or self._result.status != "failed":
                raise WorkerLost(str(error)) from None
        finally:
            for process in self._context.processes:
                process.kill()
        self._listen()
        if self._result is None:
            raise WorkerLost("rank 0 exited without a result")
        return self._result

    @contextmanager
    def _forwarding(self) -> Iterator[None]:
        """Pass SIGTERM and SIGUSR1 on to rank 0, which then saves its state."""

        def forward(number: int, frame: FrameType | None) -> None:
            self._is_stopped |= number == signal.SIGTERM
            if self._first.is_alive():
                os.kill(self._first.pid, number)

        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = (signal.SIGTERM, signal.SIGUSR1)
        before = {number: signal.signal(number, forward) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _leave_if_stopped(self) -> None:
        """Stop once rank 0 has; the other ranks only wait for it.

        Raises:
            KeyboardInterrupt: SIGTERM arrived, and rank 0 has saved its state.
        """
        if self._is_stopped and not self._first.is_alive():
            raise KeyboardInterrupt(signal.SIGTERM)

    def _listen(self) -> None:
        for connection in self._ours:
            try:
                while connection.poll():
                    self._receive(connection.recv())
            except (EOFError, OSError):
                continue

    def _receive(self, message: Any) -> None:
        if not isinstance(message, CellResult):
            self._progress(*message)
        elif self._result is None:  # later failures only follow from the first
            self._result = message


def _work(
    rank: int,
    cell: Cell,
    context: RunContext,
    port: int,
    connections: Sequence[Connection],
) -> None:
    """Train as one of the workers; send epochs and the result to the parent."""
    for number in (signal.SIGINT, signal.SIGUSR1):  # the parent handles these
        signal.signal(number, signal.SIG_IGN)
    allow_processes()
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    os.environ |= {
        CORES: str(max(1, usable_cores() // context.workers)),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(context.workers),
        "LOCAL_WORLD_SIZE": str(context.workers),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    connection = connections[rank]
    result = explained(
        train_as_worker, cell, context, lambda *event: connection.send(event)
    )
    if result is not None:
        connection.send(result)
        if result.status == "failed":
            sys.exit(1)  # makes the parent end the others, which wait for this one


def allow_processes() -> None:
    """Let a task start child processes, as a DataLoader does.

    Daemons may not have children, so the worker clears its own flag; in the parent it
    stays a daemon, which the parent ends. DataLoader workers exit with their parent.
    """
    current_process().daemon = False
    # A spawned process would spawn its children, too, which import everything again.
    set_start_method(get_all_start_methods()[0], force=True)


def _leave_with_parent() -> None:
    """Exit when the parent was killed."""
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence C++ warnings of torch in new processes, about settings we chose."""
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
