"""Data-parallel training of one cell, with the results of a single process.

Each worker is a process of a process group started by Ray Train, torchrun or Slurm. It
draws the task's full batches in the single-process order and takes its part of each.
Losses are weighted by the sizes of the parts, so DDP's averaged gradient equals that of
the whole batch even if the parts differ in size. Rank 0 evaluates, writes and reports
while the others wait.
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
"""How long workers wait for rank 0, which evaluates alone.

The launcher detects dead workers, not this timeout.
"""
_PROBED = 8
"""Examples of the first batch that the loss is tested on."""
_CLOSE = 1e-3
"""Relative difference of losses that rounding explains, even in half precision."""

_T = TypeVar("_T")


class WorkerLost(Exception):
    """A worker died or cannot reach another; the training may be restarted."""


class SharedTraining(Training):
    """Trains one cell as one of several data-parallel workers."""

    def __init__(self, cell: Cell, context: RunContext) -> None:
        check_divisible(cell)
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self._calls = 0
        if self.rank > 0:  # rank 0 does these for all
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
        # Otherwise Accelerate picks the number of threads and warns about it.
        os.environ.setdefault("OMP_NUM_THREADS", str(self.context.threads))
        accelerator = super()._accelerate(
            cpu=on_cpu,
            kwargs_handlers=[
                # As in a single process, a loss may leave parameters unused.
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
                f"{self.cell.task} has batch normalisation, which torch synchronises "
                "among workers only on GPUs; on CPUs each worker would normalise by "
                "its part of a batch, so train it with one worker."
            )
        # Not torch's conversion, which drops the activation inside timm's layers.
        layers: Any = importlib.import_module("timm.layers")
        synchronised: nn.Module = layers.convert_sync_batchnorm(model)
        return synchronised

    def _prepare(self, model: nn.Module) -> nn.Module:
        # DDP wraps the loss rather than the model, so the task sees its own model.
        prepared: nn.Module = self.accelerator.prepare_model(
            model, evaluation_mode=True
        )
        self._loss: nn.Module = self.accelerator.prepare_model(
            _Loss(self.task, prepared)
        )
        return prepared

    def _resume(self) -> None:
        """Load rank 0's checkpoint on all ranks; others may not see its file."""
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
        count = _examples_in(batch)
        if count is None:
            raise UsageError(
                f"the batches of {self.cell.task} cannot be divided among workers: "
                "they must be tensors, or tuples or dicts of tensors, with the "
                "examples along the first dimension."
            )
        if count < self.size:
            raise UsageError(
                f"a batch of {self.cell.task} has {count} examples, fewer than the "
                f"{self.size} workers that would divide it."
            )
        if self.epoch == 0:
            self._try_loss(slice_tensors(batch, slice(0, min(_PROBED, count))))
        self.result.trained["Workers"] = describe_workers(
            [stop - start for start, stop in _parts_of(count, self.size)],
            get_backend(),
            synchronised=self._normalises,
        )

    @torch.no_grad()
    def _try_loss(self, batch: Any) -> None:
        """Refuse a task whose batch loss is not the mean over the examples."""
        if self.task.loss_in_training_only:
            return

        def loss(start: int, stop: int, seed: int = 0) -> float:
            set_seed(seed)
            part = slice_tensors(batch, slice(start, stop))
            part = send_to_device(part, self.accelerator.device)
            return float(task_checks.loss_of(self.task, self.model, part))

        count, was_training = _examples_in(batch) or 0, self.model.training
        self.model.eval()
        with random_numbers_kept():
            whole, again = loss(0, count), loss(0, count, seed=1)
            first = max(1, count // 3)
            parts = first * loss(0, first) + (count - first) * loss(first, count)
        self.model.train(was_training)
        if whole != again:  # the loss is random, so its parts cannot be compared
            return
        if abs(parts / count - whole) > _CLOSE * max(abs(whole), _CLOSE):
            raise UsageError(
                f"the batches of {self.cell.task} cannot be divided among workers: its "
                f"loss of {count} examples is {whole:.6g}, and the mean over two parts "
                f"of them is {parts / count:.6g}."
            )

    def _back_propagate(self, batch: Any, batches: int, *, is_last: bool) -> Tensor:
        count = _examples_in(batch) or 0
        start, stop = _parts_of(count, self.size)[self.rank]
        # A worker without examples in a small last batch still joins the all-reduce,
        # with one example at weight 0: the others would wait for it forever.
        chosen = slice(start, stop) if stop > start else slice(0, 1)
        part = self._on_device(slice_tensors(batch, chosen))
        weight = self.size * (stop - start) / count  # DDP divides by the world size
        # When accumulating, only the last micro-batch synchronises the gradients.
        sync = nullcontext() if is_last else self.accelerator.no_sync(self._loss)
        with sync:
            with random_numbers_kept(), self.accelerator.autocast():
                set_seed(self._own_seed())
                loss: Tensor = self._loss(part) * weight / batches
            self.accelerator.backward(loss)
        return loss.detach() / self.size

    def _own_seed(self) -> int:
        """Return a seed for this worker and step, for dropout and the like.

        The global random state stays the same on all workers, because all of them draw
        the same batches from their loaders.
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
            set_mode(self.optimizer, training=False)  # as on rank 0
            self._fit_statistics()  # synchronised layers need every worker

    def _finish_epoch(self, progress: OnProgress) -> None:
        if self.rank == 0:
            super()._finish_epoch(progress)
        result = self.result
        result.status, result.message = self._from_first(
            (result.status, result.message)
        )

    def _end_trackers(self) -> None:
        # Not end_training(): the process group may train further cells.
        for tracker in self.accelerator.trackers:
            tracker.finish()

    def _from_first(self, value: _T) -> _T:
        """Broadcast the value of rank 0; every rank must call it."""
        found: list[_T] = broadcast_object_list([value], from_process=0)
        return found[0]


class _Loss(nn.Module):
    """A task's loss as a module for DDP, as the loss may call the model repeatedly."""

    def __init__(self, task: Task, model: nn.Module) -> None:
        super().__init__()
        self._task, self.model = task, model

    def forward(self, batch: Any) -> Tensor:
        return task_checks.loss_of(self._task, self.model, batch)


def train_as_worker(
    cell: Cell, context: RunContext, progress: OnProgress = lambda epoch, latest: None
) -> CellResult | None:
    """Train a cell as one worker of the process group given by the environment.

    Reads ``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK``, ``MASTER_ADDR`` and ``MASTER_PORT``,
    as torchrun sets them.

    Returns:
        The result on rank 0, None on the others.

    Raises:
        WorkerLost: another worker cannot be reached.
    """
    try:
        training = SharedTraining(cell, context)
        result = training.run(progress)
    except RuntimeError as error:
        # Gloo raises plain RuntimeErrors that name its source file.
        if isinstance(error, DistError) or "gloo" in str(error):
            raise WorkerLost(str(error)) from error
        raise
    return result if training.rank == 0 else None


def check_divisible(cell: Cell) -> None:
    """Refuse a cell that is known not to work with several workers."""
    why = load_task_class(cell.task)[0].undivided
    if not why and len(cell.seeds) > 1:
        why = "its seeds are trained stacked; --stack off trains them one by one"
    for label in cell.methods:
        if method_of(label).spec.name == "posthoc-ema":
            why = why or f"{label} writes its averages to files that workers would mix"
    if why:
        raise UsageError(
            f"{cell.task} cannot be divided among several workers, because {why}."
        )


def _parts_of(count: int, size: int) -> list[tuple[int, int]]:
    """Divide ``count`` examples: start and end of each worker's part.

    >>> _parts_of(8, 3)
    [(0, 3), (3, 6), (6, 8)]
    >>> _parts_of(1, 2)
    [(0, 1), (1, 1)]
    """
    least, more = divmod(count, size)
    ends = [rank * least + min(rank, more) for rank in range(size + 1)]
    return list(pairwise(ends))


def _examples_in(batch: Any) -> int | None:
    """Count the examples in a batch; None if it cannot be divided.

    >>> _examples_in((torch.zeros(4, 2), {"labels": torch.zeros(4)}))
    4
    >>> _examples_in((torch.zeros(4, 2), torch.zeros(3))) is None
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
