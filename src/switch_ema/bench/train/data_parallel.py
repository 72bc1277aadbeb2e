"""One training spread over several workers, with the numbers of one process.

Each worker is a process of a process group, as Ray Train, torchrun or Slurm start it.
It draws the whole batches of the task, in the order of one process, and takes its part
of each; DDP adds up the gradients. Losses are weighted by the sizes of the parts, so
that the gradient is that of the whole batch, also where the parts differ in size.
The first worker evaluates, writes and reports; the others wait for it.
"""

import importlib
import os
import random
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from typing import Any, TypeVar

import torch
from accelerate import Accelerator
from accelerate.utils import (
    DistributedDataParallelKwargs,
    InitProcessGroupKwargs,
    broadcast_object_list,
    send_to_device,
    set_seed,
    slice_tensors,
)
from torch import Tensor, nn
from torch.distributed import DistError, get_backend
from torch.nn.modules.batchnorm import _BatchNorm

from switch_ema._random import random_numbers_kept
from switch_ema.bench.errors import UsageError
from switch_ema.bench.loading import load_task_class
from switch_ema.bench.method_names import CONTROL
from switch_ema.bench.methods import method_of
from switch_ema.bench.optimizers.step import set_mode
from switch_ema.bench.plan.cells import Cell
from switch_ema.bench.task import Task, epoch_seed
from switch_ema.bench.train import task_checks
from switch_ema.bench.train.checkpoints import (
    Unreadable,
    checkpoint_path,
    load_checkpoint,
    read,
    restore,
)
from switch_ema.bench.train.context import RunContext
from switch_ema.bench.train.description import describe_workers
from switch_ema.bench.train.loop import Training
from switch_ema.bench.train.result import CellResult
from switch_ema.bench.train.values import OnProgress

PATIENCE = timedelta(days=1)
"""How long workers wait for the first one, which evaluates alone.

A worker that dies is noticed by what has started it, not by this.
"""
_PROBED = 8
"""Examples of the first batch that the loss is tried with."""
_CLOSE = 1e-3
"""Relative difference between losses that rounding explains, also in half precision."""

_T = TypeVar("_T")


class WorkerLost(Exception):
    """A worker has died, or cannot reach another; the training may be started again."""


class SharedTraining(Training):
    """One cell, as one of several workers trains it."""

    def __init__(self, cell: Cell, context: RunContext) -> None:
        check_divisible(cell)
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self._calls = 0
        if self.rank > 0:  # the first worker does these for all
            context = replace(
                context,
                trackers=(),
                keeps_trajectory=False,
                makes_samples=False,
                measures_trivial=False,
            )
        super().__init__(cell, context)

    def _accelerate(self, **more: Any) -> Accelerator:
        on_cpu = self.context.device == "cpu" or not torch.cuda.is_available()
        # Accelerate would choose the threads itself, and say so.
        os.environ.setdefault("OMP_NUM_THREADS", str(self.context.threads))
        accelerator = super()._accelerate(
            cpu=on_cpu,
            kwargs_handlers=[
                # As in one process, parameters may have no part in a loss.
                DistributedDataParallelKwargs(find_unused_parameters=True),
                InitProcessGroupKwargs(timeout=PATIENCE),
            ],
        )
        torch.set_num_threads(self.context.threads)
        return accelerator

    def _make_model(self) -> nn.Module:
        model = super()._make_model()
        self._normalises = any(isinstance(m, _BatchNorm) for m in model.modules())
        if not self._normalises:
            return model
        if self.accelerator.device.type != "cuda":
            raise UsageError(
                f"{self.cell.task} has batch normalisation, whose statistics would be "
                "those of each worker's part of a batch: torch shares them among "
                "workers on GPUs alone; train it with one worker."
            )
        # Not torch's own, which would lose the activation in timm's layers.
        layers: Any = importlib.import_module("timm.layers")
        synchronised: nn.Module = layers.convert_sync_batchnorm(model)
        return synchronised

    def _prepare(self, model: nn.Module) -> nn.Module:
        # The loss is what DDP wraps, so the task is given its own model, as ever.
        prepared: nn.Module = self.accelerator.prepare_model(
            model, evaluation_mode=True
        )
        self._loss: nn.Module = self.accelerator.prepare_model(
            _Loss(self.task, prepared)
        )
        return prepared

    def _resume(self) -> None:
        """Continue from the first worker's checkpoint; others may not see its file."""
        state, problem = None, ""
        if self.rank == 0:
            try:
                state = read(checkpoint_path(self.context.folder, self.cell))
                load_checkpoint(self)
            except Unreadable as error:
                problem = str(error)
        state, problem = self._from_first((state, problem))
        if problem:
            raise Unreadable(problem)
        if self.rank > 0 and state is not None:
            restore(self, state, with_values=False)

    def _train_epoch(self) -> None:
        self._calls = 0
        super()._train_epoch()

    def _look_at(self, batch: Any) -> None:
        super()._look_at(batch)
        count = examples_in(batch)
        if count is None:
            raise UsageError(
                f"the batches of {self.cell.task} cannot be divided among workers: "
                "they must be tensors, or tuples or dicts of them, with the examples "
                "along their first dimension."
            )
        if count < self.size:
            raise UsageError(
                f"a batch of {self.cell.task} has {count} examples, fewer than the "
                f"{self.size} workers that would divide it."
            )
        if self.epoch == 0:
            self._try_loss(slice_tensors(batch, slice(0, min(_PROBED, count))))
        self.result.trained["Workers"] = describe_workers(
            [stop - start for start, stop in parts_of(count, self.size)],
            get_backend(),
            synchronised=self._normalises,
        )

    @torch.no_grad()
    def _try_loss(self, batch: Any) -> None:
        """Refuse a task whose loss is not the mean of those of parts of a batch."""
        if self.task.loss_in_training_only:
            return

        def loss(start: int, stop: int, seed: int = 0) -> float:
            set_seed(seed)
            part = slice_tensors(batch, slice(start, stop))
            part = send_to_device(part, self.accelerator.device)
            return float(task_checks.loss_of(self.task, self.model, part))

        count, was_training = examples_in(batch) or 0, self.model.training
        self.model.eval()
        with random_numbers_kept():
            whole, again = loss(0, count), loss(0, count, seed=1)
            first = max(1, count // 3)
            parts = first * loss(0, first) + (count - first) * loss(first, count)
        self.model.train(was_training)
        if whole != again:  # it draws random numbers, so parts cannot be compared
            return
        if abs(parts / count - whole) > _CLOSE * max(abs(whole), _CLOSE):
            raise UsageError(
                f"the batches of {self.cell.task} cannot be divided among workers: its "
                f"loss of {count} examples is {whole:.6g}, and the mean over two parts "
                f"of them is {parts / count:.6g}."
            )

    def _back_propagate(self, batch: Any, batches: int, *, is_last: bool) -> Tensor:
        count = examples_in(batch) or 0
        start, stop = parts_of(count, self.size)[self.rank]
        # Who gets nothing of a small last batch takes part with a weight of 0.
        chosen = slice(start, stop) if stop > start else slice(0, 1)
        part = send_to_device(slice_tensors(batch, chosen), self.accelerator.device)
        weight = self.size * (stop - start) / count  # DDP divides by the size
        waits = nullcontext() if is_last else self.accelerator.no_sync(self._loss)
        with waits:
            with random_numbers_kept(), self.accelerator.autocast():
                set_seed(self._own_seed())
                loss: Tensor = self._loss(part) * weight / batches
            self.accelerator.backward(loss)
        return loss.detach() / self.size

    def _own_seed(self) -> int:
        """Return a seed of this worker and step, for dropout and the like.

        What the loader draws stays the same for all workers.
        """
        self._calls += 1
        epoch = epoch_seed(self.task.seed, self.epoch)
        is_control = any(CONTROL in label for label in self.cell.methods)
        text = f"{epoch} {is_control} {self._calls} {self.rank}"
        return random.Random(text).getrandbits(32)

    def _of_all(self, total: Tensor) -> Tensor:
        summed: Tensor = self.accelerator.reduce(total, "sum")
        return summed

    def _evaluate(self) -> None:
        if self.rank == 0:
            super()._evaluate()
        elif self.cell.recipe.is_evaluated(self.epoch + 1):
            set_mode(self.optimizer, training=False)  # as the first worker's is

    def _finish_epoch(self, progress: OnProgress) -> None:
        if self.rank == 0:
            super()._finish_epoch(progress)
        result = self.result
        result.status, result.message = self._from_first(
            (result.status, result.message)
        )

    def _end_trackers(self) -> None:
        for tracker in self.accelerator.trackers:  # the process group may serve again
            tracker.finish()

    def _from_first(self, value: _T) -> _T:
        """Return what the first worker has; all workers have to call it."""
        found: list[_T] = broadcast_object_list([value], from_process=0)
        return found[0]


class _Loss(nn.Module):
    """The loss of a task as a module, for DDP: it calls the model as it likes."""

    def __init__(self, task: Task, model: nn.Module) -> None:
        super().__init__()
        self._task, self.model = task, model

    def forward(self, batch: Any) -> Tensor:
        return task_checks.loss_of(self._task, self.model, batch)


def train_as_worker(
    cell: Cell, context: RunContext, progress: OnProgress = lambda epoch, latest: None
) -> CellResult | None:
    """Train a cell as one worker of the process group that the environment describes.

    ``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK``, ``MASTER_ADDR`` and ``MASTER_PORT`` are
    set as torchrun sets them.

    Returns:
        The result, of the first worker; the others have none.

    Raises:
        WorkerLost: another worker cannot be reached.
    """
    try:
        training = SharedTraining(cell, context)
        result = training.run(progress)
    except RuntimeError as error:
        # Errors of gloo have no type of their own; they name its source file.
        if isinstance(error, DistError) or "gloo" in str(error):
            raise WorkerLost(str(error)) from error
        raise
    return result if training.rank == 0 else None


def check_divisible(cell: Cell) -> None:
    """Refuse a cell that several workers cannot train, as far as its task tells."""
    why = load_task_class(cell.task)[0].undivided
    if not why and len(cell.seeds) > 1:
        why = "its seeds are trained at once; --stack off trains them one by one"
    for label in cell.methods:
        if method_of(label).spec.name == "posthoc-ema":
            why = why or f"{label} writes its averages to files that workers would mix"
    if why:
        raise UsageError(
            f"{cell.task} cannot be divided among several workers, because {why}."
        )


def parts_of(count: int, size: int) -> list[tuple[int, int]]:
    """Divide so many examples: the first and the end of each worker's part.

    >>> parts_of(8, 3)
    [(0, 3), (3, 6), (6, 8)]
    >>> parts_of(1, 2)
    [(0, 1), (1, 1)]
    """
    least, more = divmod(count, size)
    ends = [rank * least + min(rank, more) for rank in range(size + 1)]
    return list(pairwise(ends))


def examples_in(batch: Any) -> int | None:
    """Count the examples of a batch; None if it cannot be divided.

    >>> examples_in((torch.zeros(4, 2), {"labels": torch.zeros(4)}))
    4
    >>> examples_in((torch.zeros(4, 2), torch.zeros(3))) is None
    True
    """
    counts = {
        len(leaf) if isinstance(leaf, Tensor) and leaf.ndim else None
        for leaf in _leaves(batch)
    }
    return counts.pop() if len(counts) == 1 else None


def _leaves(batch: Any) -> Iterator[Any]:
    if isinstance(batch, Mapping):
        batch = tuple(batch.values())
    if isinstance(batch, (tuple, list)):
        for part in batch:
            yield from _leaves(part)
    else:
        yield batch
