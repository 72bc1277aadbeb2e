"""Data-parallel training of one cell, with the results of a single process.

Each worker is a process of a process group started by Ray Train, torchrun or Slurm. It
takes its part of each batch of the single-process order: the task's loader reads only
that part, or draws whole batches, of which the worker takes its part. Losses are
weighted by the sizes of the parts, so DDP's averaged gradient equals that of the whole
batch even if the parts differ in size. Rank 0 writes and reports; it also evaluates
alone, unless the task divides its evaluation.
"""

import importlib
import os
import random
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
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
from switch_ema.bench.loaders import BatchPart, feed, is_placed
from switch_ema.bench.loading import load_task_class
from switch_ema.bench.method_names import CONTROL
from switch_ema.bench.methods import method_of
from switch_ema.bench.optimizers.step import set_mode
from switch_ema.bench.plan.cells import Cell
from switch_ema.bench.sharding import Shard
from switch_ema.bench.task import JointLossTask, Loader, Task, epoch_seed
from switch_ema.bench.train import task_checks
from switch_ema.bench.train.batch_statistics import SynchronisedStatistics
from switch_ema.bench.train.checkpoints import (
    Unreadable,
    checkpoint_path,
    load_checkpoint,
    read,
    restore,
)
from switch_ema.bench.train.context import RunContext
from switch_ema.bench.train.description import describe_workers
from switch_ema.bench.train.joint_loss import back_propagate_jointly
from switch_ema.bench.train.loop import Training
from switch_ema.bench.train.position import carries_state
from switch_ema.bench.train.result import CellResult
from switch_ema.bench.train.values import OnProgress

PATIENCE = timedelta(days=1)
"""How long workers wait for rank 0, which may evaluate alone.

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
        if self.rank > 0:  # rank 0 does these for all
            context = replace(
                context,
                trackers=(),
                keeps_trajectory=False,
                makes_samples=False,
                measures_trivial=False,
            )
        super().__init__(cell, context)

    def _make_task(self, split: str) -> Task:
        task = super()._make_task(split)
        task.shard = Shard(self.rank, self.size)
        return task

    def _accelerate(self, **more: Any) -> Accelerator:
        on_cpu = self.context.device == "cpu" or not torch.cuda.is_available()
        # Otherwise Accelerate picks the number of threads and warns about it.
        os.environ.setdefault("OMP_NUM_THREADS", str(self.context.threads))
        accelerator = super()._accelerate(
            cpu=on_cpu,
            kwargs_handlers=[
                # As in a single process, a loss may leave parameters unused.
                DistributedDataParallelKwargs(
                    find_unused_parameters=not self.task.uses_all_parameters
                ),
                InitProcessGroupKwargs(timeout=PATIENCE),
            ],
        )
        torch.set_num_threads(self.context.threads)
        return accelerator

    def _make_model(self) -> nn.Module:
        model = super()._make_model()
        self._normalises = any(isinstance(m, _BatchNorm) for m in model.modules())
        if not (self._normalises and self.accelerator.device.type == "cuda"):
            return model
        # Not torch's conversion, which drops the activation inside timm's layers.
        layers: Any = importlib.import_module("timm.layers")
        synchronised: nn.Module = layers.convert_sync_batchnorm(model)
        return synchronised

    def _synchronised(self) -> AbstractContextManager[Any]:
        """Normalise by whole batches; on GPUs the layers do that themselves."""
        if self._normalises and self.accelerator.device.type != "cuda":
            return SynchronisedStatistics(self.task.shard)
        return nullcontext()

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

    def _count_examples(self, batch: "_Part") -> int:
        return batch.whole

    def _log_steps(self, total: Tensor, batches: int) -> None:
        if self.rank == 0:  # its own part of each loss, as if it were the whole
            super()._log_steps(total * self.size, batches)

    def _save_within_epoch(self, loader: Loader | None) -> None:
        # Only rank 0 has the files; a signal ends it first, and then the others.
        if self.rank == 0:
            super()._save_within_epoch(loader)

    def _save_position(self, loader: Loader | None) -> None:
        if carries_state(loader):  # each rank carries its own state
            return
        # A training cannot begin with the last batch, which may be too small to divide.
        if loader is None or self.position.batches < len(loader) - 1:
            super()._save_position(loader)

    def _feed(self, loader: Loader) -> Iterator["_Part"]:
        """Yield this worker's part of each batch."""
        device, shard, spare = self.accelerator.device, self.task.shard, None
        draw = partial(_parts, loader, device, shard, self.cell.task)
        for batch, whole in self._remaining(loader, draw):
            own = _rows_of(batch)
            own = len(shard.of(whole)) if own is None else own
            if spare is None and whole < self.size:
                raise UsageError(
                    f"a batch of {self.cell.task} has {whole} examples, fewer than the "
                    f"{self.size} workers that would divide it."
                )
            if spare is None:
                spare = slice_tensors(batch, slice(0, 1)) if _rows_of(batch) else batch
            if own == 0 and self._normalises:
                raise UsageError(
                    f"a batch of {self.cell.task} has {whole} examples, fewer than the "
                    f"{self.size} workers, so batch norm cannot divide it."
                )
            # A worker without examples in a small last batch still joins the
            # all-reduce, with an earlier example at weight 0: the others would wait
            # for it forever.
            yield _Part(batch if own else spare, own, whole)

    def _look_at(self, batch: "_Part", *, is_control: bool) -> None:
        self._whole = batch.whole
        super()._look_at(batch.own, is_control=is_control)
        if self.epoch == 0:
            self._try_loss(batch.own)
        self.result.trained["Workers"] = describe_workers(
            self.task.shard.gather_items([batch.count]),
            get_backend(),
            synchronised=self._normalises,
        )

    @torch.no_grad()
    def _try_loss(self, batch: Any) -> None:
        """Refuse a task whose batch loss is not the mean over the examples."""
        task, count = self.task, min(_rows_of(batch) or 0, _PROBED)
        if task.loss_in_training_only or task.shares_loss or count < 2:
            return

        def loss(start: int, stop: int, seed: int = 0) -> float:
            set_seed(seed)
            part = slice_tensors(batch, slice(start, stop))
            return float(task_checks.loss_of(task, self.model, self._on_device(part)))

        was_training = self.model.training
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

    def _back_propagate(self, batch: "_Part", batches: int, *, is_last: bool) -> Tensor:
        # DDP divides by the world size. A joint loss is that of the whole batch.
        joint = isinstance(self.task, JointLossTask)
        weight = 1.0 if joint else self.size * batch.count / batch.whole
        with self._synchronising(is_last):
            with self._own_numbers(), self.accelerator.autocast():
                own = self._on_device(batch.own)
                loss: Tensor = self._loss(own) * weight / batches
            self.accelerator.backward(loss)
        return loss.detach() / self.size

    def _back_propagate_jointly(self, task: JointLossTask, held: list[Any]) -> Tensor:
        with self._own_numbers():
            loss = back_propagate_jointly(
                task,
                self.model,
                [self._on_device(batch.own) for batch in held],
                accelerator=self.accelerator,
                embed=partial(self._loss, only_embed=True),
                synchronising=self._synchronising,
            )
        return loss / self.size

    def _synchronising(self, is_last: bool) -> AbstractContextManager[Any]:
        """When accumulating, only the last micro-batch synchronises the gradients."""
        context: AbstractContextManager[Any] = nullcontext()
        return context if is_last else self.accelerator.no_sync(self._loss)

    @contextmanager
    def _own_numbers(self) -> Iterator[None]:
        """Draw this worker's random numbers; normalise by whole batches."""
        with random_numbers_kept(), self._synchronised():
            set_seed(self._own_seed())
            yield

    def _own_seed(self) -> int:
        """Return a seed for this worker and step, for dropout and the like.

        The global random state stays the same on all workers, because all of them draw
        the same batches from their loaders.
        """
        self.position.calls += 1
        epoch = epoch_seed(self.task.seed, self.epoch)
        is_control = any(CONTROL in label for label in self.cell.methods)
        text = f"{epoch} {is_control} {self.position.calls} {self.rank}"
        return random.Random(text).getrandbits(32)

    def _of_all(self, total: Tensor) -> Tensor:
        summed: Tensor = self.accelerator.reduce(total, "sum")
        return summed

    def _evaluate(self) -> None:
        if self.rank == 0 or self.tested.divides_evaluation:
            super()._evaluate()
        elif self.cell.recipe.is_evaluated(self.epoch + 1):
            set_mode(self.optimizer, training=False)  # as on rank 0
            self.fit_statistics()

    def fit_statistics(self) -> None:
        """Recompute batch-norm statistics, of whole batches."""
        with self._synchronised():  # needs every worker
            super().fit_statistics()

    def _finish_epoch(self, progress: OnProgress) -> None:
        broken = self.task.broken
        for path, why in self.task.shard.gather_items(list(broken.found.items())):
            broken.add(path, why)  # refused on all workers, if there are too many
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

    def forward(self, batch: Any, only_embed: bool = False) -> Any:
        if only_embed:
            assert isinstance(self._task, JointLossTask)
            return self._task.embed(self.model, batch)
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


@dataclass(frozen=True)
class _Part:
    """A worker's part of a batch."""

    own: Any
    count: int
    """Its examples; if 0, ``own`` is an earlier example with weight 0."""
    whole: int
    """Examples of the whole batch."""


def _parts(
    loader: Loader, device: torch.device, part: BatchPart, task: str, start: int = 0
) -> Iterator[tuple[Any, int]]:
    """Yield a worker's part of each batch, and the size of the whole batch."""
    if is_placed(loader):
        batches = feed(loader, device, start=start, part=part)
        for index, batch in enumerate(batches, start):
            yield batch, loader.examples(index)
        return
    for batch in loader:
        count = _examples_in(batch)
        if count is None:
            raise UsageError(
                f"the batches of {task} cannot be divided among workers: they must be "
                "tensors, or tuples or dicts of tensors, with the examples along the "
                "first dimension."
            )
        yield send_to_device(part.take(batch), device), count


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


def _rows_of(batch: Any) -> int | None:
    """Count the examples of a part; None for lists of images and other objects.

    >>> _rows_of((torch.zeros(4, 2), torch.zeros(4)))
    4
    >>> _rows_of(([torch.zeros(3, 8, 9)], [{}])) is None
    True
    """
    nested = isinstance(batch, (tuple, list)) and any(
        isinstance(part, list) for part in batch
    )
    return None if nested else _examples_in(batch)


def _leaves(batch: Any) -> Iterator[Any]:
    if isinstance(batch, Mapping):
        batch = tuple(batch.values())
    if isinstance(batch, (tuple, list)):
        for part in batch:
            yield from _leaves(part)
    else:
        yield batch
