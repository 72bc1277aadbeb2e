"""Log of a training: loss, learning rate, decays, speed and memory, every few steps.

The losses are summed on the device and read once per interval, so that steps do not
wait for it.
"""

import json
import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.optim import Optimizer

from switch_ema._files import write_atomically
from switch_ema.averaging.averager import Averager
from switch_ema.bench.train.memory import peak_mb

if TYPE_CHECKING:
    from switch_ema.bench.plan.cells import Cell

_EVERY = 50
"""Steps between two lines."""
_TRAINING = "training/"
"""Prefix of the values that trackers get."""


@dataclass(frozen=True, kw_only=True)
class _StepRecord:
    """One line of the log, about the steps since the one before."""

    epoch: int
    """Counted from 1."""
    step: int
    """Optimizer steps of the training so far."""
    loss: float | None
    """Mean training loss, of the first worker's examples if there are several; None if
    it is not finite."""
    learning_rate: float
    """Of the optimizer's first parameter group."""
    examples_per_second: float | None
    """Including the wait for the data; None if the batches cannot be counted."""
    memory_mb: float
    """Peak memory of the GPU, or of the process on a CPU, in 10^6 bytes."""
    decays: dict[str, float] = field(default_factory=dict)
    """Decay of each method in the last step."""


def steps_path(folder: Path, cell: "Cell") -> Path:
    """Path of a cell's log of steps; it stays when the training is finished."""
    return folder / "steps" / f"{cell.id}.jsonl"


class StepLog:
    """Append-only file with one line of JSON per interval."""

    def __init__(self, path: Path, device: torch.device) -> None:
        self._path, self._device, self._is_open = path, device, False
        self.latest: _StepRecord | None = None
        """The last line that was written."""

    def begin_epoch(self, total: float, step: int) -> None:
        """Begin or continue an epoch.

        Args:
            total: sum of the epoch's losses so far.
            step: optimizer steps so far; later ones in the file are trained again.
        """
        if not self._is_open:
            self._open(step)
        self._begin(total)

    def _open(self, step: int) -> None:
        """Create the file, or cut off what a killed training wrote after ``step``."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        lines = []
        if self._path.exists():
            lines = self._path.read_text(encoding="utf-8").splitlines(keepends=True)
        kept = [line for line in lines if _step_of(line) <= step]
        write_atomically(self._path, "".join(kept))
        self._is_open = True

    def _begin(self, total: float) -> None:
        self._before, self._steps, self._examples = total, 0, 0
        self._started = time.perf_counter()

    def add(self, examples: int | None) -> bool:
        """Count a step; return whether a line is due.

        Args:
            examples: in the step; None if unknown.
        """
        self._steps += 1
        self._examples += examples or 0
        return self._steps >= _EVERY

    def write(
        self,
        total: Tensor,
        *,
        epoch: int,
        step: int,
        optimizer: Optimizer,
        averagers: Mapping[str, Averager | None],
    ) -> None:
        """Append a line about the steps since the last one, if there are any.

        Args:
            total: sum of the epoch's losses so far; reading it waits for the device.
            epoch: counted from 1.
            step: optimizer steps so far.
            optimizer: gives the learning rate.
            averagers: give the decays.
        """
        if not self._steps:
            return
        now = total.item()
        mean = (now - self._before) / self._steps
        seconds = max(time.perf_counter() - self._started, 1e-9)
        self.latest = _StepRecord(
            epoch=epoch,
            step=step,
            loss=mean if math.isfinite(mean) else None,
            learning_rate=float(optimizer.param_groups[0]["lr"]),
            examples_per_second=self._examples / seconds if self._examples else None,
            memory_mb=round(peak_mb(self._device), 1),
            decays={
                label: float(averager.current_decay)
                for label, averager in averagers.items()
                if averager is not None
            },
        )
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(self.latest)) + "\n")
        self._begin(now)

    @property
    def for_trackers(self) -> dict[str, float]:
        """The last line, under the names that trackers show."""
        if self.latest is None:
            return {}
        found = {
            "loss": self.latest.loss,
            "learning rate": self.latest.learning_rate,
            "examples per second": self.latest.examples_per_second,
            "memory (MB)": self.latest.memory_mb,
            **{f"decay of {label}": d for label, d in self.latest.decays.items()},
        }
        return {f"{_TRAINING}{k}": v for k, v in found.items() if v is not None}


def _step_of(line: str) -> float:
    """Return the step of a line; infinite for one that a kill has cut off."""
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")
