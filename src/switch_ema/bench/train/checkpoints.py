"""Checkpoints of a training: written atomically after each epoch, read exactly."""

from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

import torch

from switch_ema._files import write_atomically
from switch_ema.averaging.model.names import load_weights, unwrap
from switch_ema.bench.errors import UsageError
from switch_ema.bench.task import Task
from switch_ema.bench.tasks.stacked import StackedTask

if TYPE_CHECKING:
    from switch_ema.bench.plan.cells import Cell
    from switch_ema.bench.train.loop import Training


class Unreadable(UsageError):
    """A checkpoint is damaged, as after a full disk or a loss of power."""


def checkpoint_path(folder: Path, cell: "Cell") -> Path:
    """Where a cell's checkpoint lies in the folder of its comparison."""
    return folder / "cells" / f"{cell.id}.pt"


def save_checkpoint(training: "Training") -> None:
    """Write everything that the next epoch depends on.

    Random numbers need no state: the loop seeds them at the start of each epoch.
    """
    result = training.result
    save(
        checkpoint_path(training.place.folder, training.cell),
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
            "result": {
                "status": result.status,
                "message": result.message,
                "values": result.values,
                "train_seconds": result.train_seconds,
                "evaluate_seconds": result.evaluate_seconds,
            },
        },
    )


def load_checkpoint(training: "Training") -> None:
    """Continue from the checkpoint, if there is one; a damaged one changes nothing."""
    state = read(checkpoint_path(training.place.folder, training.cell))
    if state is None:
        return
    training.epoch = state["epoch"]
    load_weights(training.model, state["model"])
    training.optimizer.load_state_dict(state["optimizer"])
    training.schedule.load_state_dict(state["schedule"])
    if isinstance(training.task, StackedTask):
        training.task.has_stopped = torch.tensor(state["stopped"])
    for label, averager in training.averagers.items():
        if averager is not None:
            averager.load_state_dict(state["averagers"][label])
    for name, value in state["result"].items():
        setattr(training.result, name, value)


def _stopped(task: Task) -> list[bool]:
    """Say which seeds of a stack are no longer finite."""
    return task.has_stopped.tolist() if isinstance(task, StackedTask) else []


def save(path: Path, state: dict[str, Any]) -> None:
    """Write a file completely or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, lambda unfinished: torch.save(state, unfinished))


def read(path: Path) -> dict[str, Any] | None:
    """Read a checkpoint; None if there is none."""
    if not path.exists():
        return None
    with path.open("rb") as file:  # what fails here is not the checkpoint's fault
        try:
            state: dict[str, Any] = torch.load(
                file, weights_only=True, map_location="cpu"
            )
        except (EOFError, OSError, RuntimeError, ValueError, UnpicklingError):
            raise Unreadable(
                f"{path} is damaged; delete the folder of its run and run it again."
            ) from None
    return state
