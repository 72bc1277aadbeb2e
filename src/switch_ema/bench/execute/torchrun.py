"""Trains cells in the processes of ``torchrun -m switch_ema compare ...``.

Rank 0 plans, stores and displays. It sends each cell to the other ranks, and all of
them train it together.

torchrun's store listens on all interfaces, so its content is untrusted: messages are
validated JSON, and a user's file is run only if it is on this process's command line.
"""

import dataclasses
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from types import UnionType
from typing import Any, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

import torch.distributed as dist

from switch_ema.bench.errors import UsageError
from switch_ema.bench.execute.failures import TrainingFailed, explained, train_or_raise
from switch_ema.bench.execute.local import OnEpoch
from switch_ema.bench.plan.cells import Cell
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.recipe import Recipe
from switch_ema.bench.spec import Spec, file_of, is_script, parse_task
from switch_ema.bench.text import read_json, read_utf8
from switch_ema.bench.train.context import RunContext
from switch_ema.bench.train.data_parallel import train_as_worker
from switch_ema.bench.train.result import CellResult

_D = TypeVar("_D")
_KEY = "switch-ema cell"
_IDLE = timedelta(days=365)
"""How long a rank waits for its next cell; torchrun ends it if rank 0 is gone."""


def train_launched(
    cells: Sequence[Cell], context_of: Callable[[Cell], RunContext], on_epoch: OnEpoch
) -> Iterator[tuple[Cell, CellResult]]:
    """Yield each cell with its result, one after the other, until the first failure.

    After a failure, ranks may be blocked waiting for each other and cannot continue.
    """
    store = _store()
    for cell in cells:
        _send(store, _serialized(cell, context_of(cell)))

        def progress(*now: object, cell: Cell = cell) -> None:
            on_epoch(cell, *now)  # type: ignore[arg-type]

        result = explained(train_as_worker, cell, context_of(cell), progress)
        assert result is not None  # rank 0 has one
        yield cell, result
        if result.status == "failed":
            return


def follow() -> None:
    """Train the cells that rank 0 sends, until it has no more."""
    store, number = _store(), 0
    while True:
        number += 1
        message = store.get(_key(number))
        if not message:
            return
        try:
            cell, context = _read(message)
        except (UsageError, TypeError, ValueError, KeyError) as error:
            _leave(f"torchrun's store has an invalid message for this command: {error}")
        try:
            train_or_raise(train_as_worker, cell, context, lambda *now: None)
        except TrainingFailed as error:
            _leave(f"{cell}: {error}")


def _leave(message: str) -> NoReturn:
    """Exit without a traceback, which would bury the message of rank 0."""
    print(f"switch-ema: {message}", file=sys.stderr, flush=True)
    os._exit(1)


def _serialized(cell: Cell, context: RunContext) -> bytes:
    """Serialize a cell and its context as JSON for the other ranks."""
    message = {"cell": dataclasses.asdict(cell), "context": dataclasses.asdict(context)}
    message["context"]["folder"] = str(context.folder)
    try:
        # With the current folder: a task may change it, and its file may be relative.
        return json.dumps({**message, "home": os.getcwd()}).encode()
    except TypeError as error:
        raise UsageError(
            f"{cell.task}: its recipe must be plain data: {error}."
        ) from None


def _read(message: bytes) -> tuple[Cell, RunContext]:
    """Parse and validate a message of :func:`_serialized`.

    Raises:
        UsageError: not JSON, or it names a file that is not on the command line.
        KeyError: a field is missing.
        TypeError: a field has the wrong type.
        ValueError: a value is out of range.
    """
    found = read_json(message, "its text")
    recipe = _typed(Recipe, found["cell"]["recipe"])
    cell = _typed(Cell, {**found["cell"], "recipe": recipe})
    context = _typed(
        RunContext, {**found["context"], "folder": Path(found["context"]["folder"])}
    )
    file = file_of(parse_task(cell.task))
    if is_script(cell.task) or (file is not None and file not in _files_given()):
        raise UsageError(f"{cell.task} is not on the command line of this process")
    os.chdir(found["home"])
    return cell, context


def _typed(kind: type[_D], values: Any) -> _D:
    """Build a dataclass from JSON values, checking each against its field's type."""
    hints, made = get_type_hints(kind), {}
    for name, value in dict(values).items():
        is_tuple = get_origin(hints[name]) is tuple and isinstance(value, list)
        made[name] = tuple(value) if is_tuple else value
        if not _fits(made[name], hints[name]):
            raise TypeError(f"{name} is {value!r:.80}")
    return kind(**made)


def _fits(value: Any, hint: Any) -> bool:
    origin, parts = get_origin(hint), get_args(hint)
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(v, parts[0]) for v in value)
    if origin in (Union, UnionType):
        return any(_fits(value, part) for part in parts)
    if hint in (int, float, bool, str):
        return type(value) is hint or (hint is float and type(value) is int)
    return isinstance(value, origin or hint)


def _files_given() -> set[str | None]:
    """List the users' files on this process's command line, as typed."""
    given = sys.argv[1:]
    names = list(given)
    for before, word in zip(["", *given], given, strict=False):
        if before == "--config" or word.startswith("--config="):
            path = word.removeprefix("--config=")
            names += CompareConfig.from_json(read_utf8(Path(path)), path).tasks
    return {file_of(Spec(name)) for name in names}


def dismiss() -> None:
    """Let the other ranks exit: there are no more cells."""
    _send(_store(), b"")


def _send(store: Any, message: bytes) -> None:
    store.set(_key(store.add(_key(0), 1)), message)


def _store() -> Any:
    """Connect to torchrun's store; Any, as torch's type stubs only allow str."""
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store: Any = dist.TCPStore(  # type: ignore[attr-defined]
        address, port, is_master=False, timeout=_IDLE
    )
    return store


def _key(number: int) -> str:
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return f"{_KEY} {attempt} {number}"
