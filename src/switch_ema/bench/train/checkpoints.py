"""Checkpoints of a training: written atomically after each epoch, read exactly.

A checkpoint is what ``torch.save`` writes, followed by a checksum of all of it. One
whose content is not what was written is refused, and the training begins anew.
"""

import mmap
import os
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from switch_ema._files import write_atomically
from switch_ema.averaging.model.names import load_weights, unwrap
from switch_ema.bench.errors import UsageError
from switch_ema.bench.stacking.tasks import StackedTask
from switch_ema.bench.task import Task

if TYPE_CHECKING:
    from switch_ema.bench.plan.cells import Cell
    from switch_ema.bench.train.loop import Training

_MARK = b"switch-ema checkpoint, crc32: "
"""Stands between the content and its checksum."""
_END = len(_MARK) + 8
_LINES = "lines"
"""How many epochs have their values in the file beside it; 0.1.0 had no such entry."""


class Unreadable(UsageError):
    """A checkpoint is damaged, as after a full disk or a loss of power."""


def checkpoint_path(folder: Path, cell: "Cell") -> Path:
    """Where a cell's checkpoint lies in the folder of its comparison."""
    return folder / "cells" / f"{cell.id}.pt"


def values_path(folder: Path, cell: "Cell") -> Path:
    """Where the values of a cell's epochs lie beside its checkpoint."""
    return folder / "cells" / f"{cell.id}.values"


def forget(folder: Path, cell: "Cell") -> None:
    """Delete what a cell could be continued from."""
    for path in (checkpoint_path(folder, cell), values_path(folder, cell)):
        path.unlink(missing_ok=True)


def save_checkpoint(training: "Training") -> None:
    """Write everything that the next epoch depends on.

    Random numbers need no state: the loop seeds them at the start of each epoch.
    """
    result = training.result
    path = checkpoint_path(training.context.folder, training.cell)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Values first: a checkpoint must never know of epochs that have none.
    training.log.add(result.values)
    save(
        path,
        {
            "epoch": training.epoch,
            "model": unwrap(training.model).state_dict(),
            "optimizer": training.optimizer.state_dict(),
            "schedule": training.schedule.state_dict(),
            "stopped": _stopped(training.task),
            "averagers": {
                label: averager.state_dict()
                for label, averager in training.averagers.items()
                if averager is not None
            },
            _LINES: training.log.lines,
            "selections": {
                label: selection.state()
                for label, selection in training.selections.items()
            },
            "result": {
                "status": result.status,
                "message": result.message,
                "train_seconds": result.train_seconds,
                "evaluate_seconds": result.evaluate_seconds,
            },
        },
    )


def load_checkpoint(training: "Training", *, with_values: bool = True) -> None:
    """Continue from the checkpoint, if there is one.

    Args:
        training: as it is at its beginning; after an error parts of the checkpoint may
            have been loaded into it.
        with_values: whether the values of earlier epochs are needed, too.

    Raises:
        Unreadable: it is damaged, or not a checkpoint of this training.
    """
    path = checkpoint_path(training.context.folder, training.cell)
    state = read(path)
    if state is None:
        return
    try:
        restore(training, state, with_values=with_values)
    except Exception as error:
        raise _damaged(path) from error


def restore(training: "Training", state: dict[str, Any], *, with_values: bool) -> None:
    """Put the state of a checkpoint into a training as it is at its beginning."""
    load_weights(training.model, state["model"])
    training.optimizer.load_state_dict(state["optimizer"])
    training.schedule.load_state_dict(state["schedule"])
    if isinstance(training.task, StackedTask):
        training.task.has_stopped = torch.tensor(state["stopped"])
    for label, averager in training.averagers.items():
        if averager is not None:
            averager.load_state_dict(state["averagers"][label])
    for label, selection in training.selections.items():
        selection.load(state["selections"][label])
    # A run that 0.1.0 has begun has its values in here.
    for name, value in state["result"].items():
        setattr(training.result, name, value)
    if with_values and _LINES in state:
        training.result.values = training.log.read(state[_LINES])
    training.epoch = state["epoch"]


def _stopped(task: Task) -> list[bool]:
    """Say which seeds of a stack are no longer finite."""
    return task.has_stopped.tolist() if isinstance(task, StackedTask) else []


def save(path: Path, state: dict[str, Any]) -> None:
    """Write a file completely or not at all, with a checksum at its end."""

    def write(unfinished: Path) -> None:
        with _without_inner_checksums():
            torch.save(state, unfinished)
        with unfinished.open("ab") as file:
            file.write(_MARK + _checksum(unfinished))

    write_atomically(path, write)


def read(path: Path) -> dict[str, Any] | None:
    """Read a checkpoint; None if there is none.

    Raises:
        Unreadable: its content is not what was written.
    """
    if not path.exists():
        return None
    with path.open("rb") as file:  # what fails here is not the checkpoint's fault
        file.seek(-min(_END, path.stat().st_size), os.SEEK_END)
        end = file.read()
    is_marked = end.startswith(_MARK)
    try:
        if is_marked:
            if _checksum(path, without=_END) != end[len(_MARK) :]:
                raise _damaged(path)
        else:  # 0.1.0 wrote no checksum of its own; those of the zip file remain
            with zipfile.ZipFile(path) as archive:
                if archive.testzip() is not None:
                    raise _damaged(path)
        state: dict[str, Any] = torch.load(path, weights_only=True, map_location="cpu")
        if not is_marked and _LINES in state:  # it has lost its checksum
            raise _damaged(path)
    except Exception as error:  # whatever damage makes of a file
        raise _damaged(path) from error
    return state


@contextmanager
def _without_inner_checksums() -> Iterator[None]:
    """Spare torch's own sums, which are slow: one over the whole file follows."""
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        yield
    finally:
        torch.serialization.set_crc32_options(before)


def _checksum(path: Path, without: int = 0) -> bytes:
    """Sum up a file, without so many bytes at its end."""
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        memoryview(content) as view,
        view[: len(view) - without] as counted,
    ):
        return b"%08x" % zlib.crc32(counted)


def _damaged(path: Path) -> Unreadable:
    return Unreadable(
        f"{path} is damaged; delete the folder of its run and run it again."
    )
