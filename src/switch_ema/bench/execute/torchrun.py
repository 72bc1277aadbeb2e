"""Trains cells with the processes that torchrun has started the command in.

``torchrun --nproc-per-node 2 -m switch_ema compare ...``: the first process plans,
stores and shows; it tells the others which cell comes next, and all train it together.
"""

import os
import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from switch_ema.bench.execute.failures import TrainingFailed, explained, train_or_raise
from switch_ema.bench.execute.local import OnEpoch
from switch_ema.bench.plan.cells import Cell
from switch_ema.bench.train.context import RunContext
from switch_ema.bench.train.data_parallel import train_as_worker
from switch_ema.bench.train.result import CellResult

_KEY = "switch-ema cell"
_IDLE = timedelta(days=365)
"""How long a process waits for its next cell: torchrun ends it if the first is gone."""


def train_launched(
    cells: Sequence[Cell], place: Callable[[Cell], RunContext], on_epoch: OnEpoch
) -> Iterator[tuple[Cell, CellResult]]:
    """Yield each cell with its result, one after the other; the first failure ends it.

    After a failure the processes may wait for each other, and are of no more use.
    """
    store = _store()
    for cell in cells:
        told = pickle.dumps((cell, place(cell), os.getcwd()))
        _tell(store, told)

        def progress(*now: object, cell: Cell = cell) -> None:
            on_epoch(cell, *now)  # type: ignore[arg-type]

        result = explained(train_as_worker, cell, place(cell), progress)
        assert result is not None  # the first worker has one
        yield cell, result
        if result.status == "failed":
            return


def follow() -> None:
    """Train what the first process tells, until it has no more."""
    store, number = _store(), 0
    while True:
        number += 1
        told = store.get(_key(number))
        if not told:
            return
        cell, place, home = pickle.loads(told)
        os.chdir(home)
        try:
            train_or_raise(train_as_worker, cell, place, lambda *now: None)
        except TrainingFailed as error:
            # Not an exception, so that the first process's own words are not drowned.
            print(f"switch-ema: {cell}: {error}", file=sys.stderr, flush=True)
            os._exit(1)


def dismiss() -> None:
    """Tell the other processes that there is no more to do."""
    _tell(_store(), b"")


def _tell(store: Any, told: bytes) -> None:
    store.set(_key(store.add(_key(0), 1)), told)


def _store() -> Any:
    """Join the store of torchrun; torch's types of it know texts alone."""
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store: Any = dist.TCPStore(  # type: ignore[attr-defined]
        address, port, is_master=False, timeout=_IDLE
    )
    return store


def _key(number: int) -> str:
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return f"{_KEY} {attempt} {number}"
