"""Recomputes batch-norm statistics of an average from the training data."""

from collections.abc import Callable
from typing import Any, cast

import torch
from accelerate.utils import set_seed
from torch import nn

from switch_ema.averaging.averager import Averager
from switch_ema.averaging.model.names import unwrap
from switch_ema.averaging.view.recalibration import recalibrate
from switch_ema.bench.loaders import feed
from switch_ema.bench.stacking.modules import Stacked
from switch_ema.bench.stacking.tasks import StackedTask
from switch_ema.bench.task import SelfTeachingTask, Task, epoch_seed
from switch_ema.bench.train import task_checks

_PURPOSE = 5 * 2**29
"""Purpose of the random numbers, such as of augmentation: see ``epoch_seed``."""


def recompute_statistics(
    task: Task, averager: Averager, *, epoch: int, device: torch.device
) -> None:
    """Replace the statistics by their mean over an epoch of training batches.

    Each network of a stack gets those of its own batches, as if it trained alone.
    Models without such statistics are left as they are.

    Args:
        task: has the batches.
        averager: holds the average.
        epoch: number of the epoch, from 0, whose batches are used.
        device: device of the model.
    """
    if not isinstance(task, StackedTask):
        set_seed(epoch_seed(task.seed, epoch, _PURPOSE))
        loader = task_checks.make_loader(task, epoch)
        batches = feed(loader, device, part=task.shard)
        averager.recalibrate(batches, _call_of(task))
        return
    with averager.averaged() as model:
        stack = cast(Stacked, unwrap(model))
        for index, own in enumerate(task.tasks):
            if not task.has_stopped[index]:
                set_seed(epoch_seed(own.seed, epoch, _PURPOSE))
                batches = feed(task_checks.make_loader(own, epoch), device)
                alone = stack.alone(index)
                tracked = {id(buffer) for buffer in alone.buffers()}
                recalibrate(alone, batches, _call_of(own), tracked)


def _call_of(task: Task) -> Callable[[nn.Module, Any], Any]:
    """Return a function that runs a model on a batch.

    It computes the loss, since only the task knows how to call its model; but the loss
    of a self-teaching task may also fill a queue.
    """

    def call(model: nn.Module, batch: Any) -> Any:
        if isinstance(task, SelfTeachingTask):
            return model(*batch)
        return task.loss(model, batch)

    return call
