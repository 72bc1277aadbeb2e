"""Checkpoints of a training, written atomically after epochs and within them.

A checkpoint is a ``torch.save`` file followed by its checksum. If the checksum does not
match, the checkpoint is refused and training starts over.
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
from switch_ema.bench.train.description import BATCHES
from switch_ema.bench.train.position import EpochPosition

if TYPE_CHECKING:
    from switch_ema.bench.plan.cells import Cell
    from switch_ema.bench.train.loop import Training

_MARK = b"switch-ema checkpoint, crc32: "
"""Separates the content from its checksum."""
_END = len(_MARK) + 8
_LINES = "lines"
"""Key: epochs in the values file next to the checkpoint; 0.1.0 did not have it."""
_FIRST = "first batch"
"""Key: digests of the first batch; 0.2.0 did not have it."""
_POSITION, _SCALER, _SEEN = "position", "scaler", "seen"
"""Keys: state within an epoch, loss scaling, descriptions of the first batch; 0.2.0 had
none of them."""


class Unreadable(UsageError):
    """A checkpoint is damaged, for example by a full disk or a power failure."""


def checkpoint_path(folder: Path, cell: "Cell") -> Path:
    """Path of a cell's checkpoint in the run folder."""
    return folder / "cells" / f"{cell.id}.pt"


def values_path(folder: Path, cell: "Cell") -> Path:
    """Path of a cell's value log, next to its checkpoint."""
    return folder / "cells" / f"{cell.id}.values"


def forget(folder: Path, cell: "Cell") -> None:
    """Delete the files that a cell could resume from."""
    for path in (checkpoint_path(folder, cell), values_path(folder, cell)):
        path.unlink(missing_ok=True)


def save_checkpoint(
    training: "Training", position: dict[str, Any] | None = None
) -> None:
    """Save everything that the rest of the training depends on.

    Args:
        training: after a step.
        position: its state within the epoch; None between epochs, where there is no
            random state to save, since the loop seeds each epoch.
    """
    result = training.result
    path = checkpoint_path(training.context.folder, training.cell)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Values first: after a kill between the two writes the log may have lines too
    # many, which are cut off, but never too few.
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
            _FIRST: result.starts.batch,
            "selections": {
                label: selection.state()
                for label, selection in training.selections.items()
            },
            _POSITION: position,
            _SCALER: _scaler_state(training),
            _SEEN: {k: v for k, v in result.trained.items() if k in BATCHES},
            "result": {
                "status": result.status,
                "message": result.message,
                "train_seconds": result.train_seconds,
                "evaluate_seconds": result.evaluate_seconds,
                "processor_seconds": result.processor_seconds,
            },
        },
    )


def load_checkpoint(training: "Training", *, with_values: bool = True) -> None:
    """Load the checkpoint into a new training, if there is one.

    Args:
        training: in its initial state; an error may leave it partly loaded.
        with_values: whether to read the values of earlier epochs as well.

    Raises:
        Unreadable: the checkpoint is damaged, or belongs to another training.
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
    """Load a checkpoint's state into a training in its initial state."""
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
    # Checkpoints of 0.1.0 keep the values here, not in the log.
    for name, value in state["result"].items():
        setattr(training.result, name, value)
    if with_values and _LINES in state:
        training.result.values = training.log.read(state[_LINES])
    training.result.starts.batch = state.get(_FIRST, [])
    training.epoch = state["epoch"]
    training.result.trained |= state.get(_SEEN, {})
    scaler = training.accelerator.scaler
    if scaler is not None and state.get(_SCALER):
        scaler.load_state_dict(state[_SCALER])
    if state.get(_POSITION) is not None:
        training.position = EpochPosition(training.epoch, **state[_POSITION])


def _scaler_state(training: "Training") -> dict[str, Any] | None:
    """Return the state of float16's loss scaling, if there is one."""
    scaler = training.accelerator.scaler
    return None if scaler is None else scaler.state_dict()


def _stopped(task: Task) -> list[bool]:
    """Return which seeds of a stack have diverged."""
    return task.has_stopped.tolist() if isinstance(task, StackedTask) else []


def save(path: Path, state: dict[str, Any]) -> None:
    """Write a state atomically, with a checksum at the end of the file."""

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
    with path.open("rb") as file:  # outside try: an I/O error is no damage
        file.seek(-min(_END, path.stat().st_size), os.SEEK_END)
        end = file.read()
    is_marked = end.startswith(_MARK)
    try:
        if is_marked:
            if _checksum(path, without=_END) != end[len(_MARK) :]:
                raise _damaged(path)
        else:  # 0.1.0 wrote no checksum; check those of the zip archive instead
            with zipfile.ZipFile(path) as archive:
                if archive.testzip() is not None:
                    raise _damaged(path)
        state: dict[str, Any] = torch.load(path, weights_only=True, map_location="cpu")
        if not is_marked and _LINES in state:  # newer than 0.1.0, so it was cut off
            raise _damaged(path)
    except Exception as error:  # a damaged file can raise almost anything
        raise _damaged(path) from error
    return state


@contextmanager
def _without_inner_checksums() -> Iterator[None]:
    """Skip torch's slow checksums: a checksum of the whole file follows."""
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        yield
    finally:
        torch.serialization.set_crc32_options(before)


def _checksum(path: Path, without: int = 0) -> bytes:
    """Return the checksum of a file except its last ``without`` bytes."""
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
