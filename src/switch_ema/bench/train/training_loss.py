"""Measures the training loss of final weights: how far a method has trained.

Every method is measured on the same batches, those of the first epoch with the same
augmentation, in evaluation mode. With the gains it shows whether methods differ by more
than how closely they fit the training data.
"""

from itertools import islice
from typing import cast

import torch
from accelerate import Accelerator
from accelerate.utils import send_to_device, set_seed
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from switch_ema.averaging.model.names import unwrap
from switch_ema.bench.loaders import feed
from switch_ema.bench.recipe import TRAINING_LOSS
from switch_ema.bench.stacking.modules import Stacked
from switch_ema.bench.stacking.tasks import StackedTask
from switch_ema.bench.task import SeedBatchTask, SelfTeachingTask, Task, epoch_seed
from switch_ema.bench.train import task_checks

_MOST_BATCHES = 16
_PURPOSE = 7 * 2**29
"""Purpose of the random numbers, such as of augmentation: see ``epoch_seed``."""


def has_training_loss(task: Task) -> bool:
    """Whether the training loss is to be measured, apart from the task's own metrics.

    Not of self-teaching tasks, whose targets and loss depend on the method, nor of
    tasks that are written to train many seeds, whose loss is a sum over seeds.
    """
    if any(metric.name == TRAINING_LOSS for metric in task.metrics):
        return False
    if isinstance(task, StackedTask):
        return True
    return not isinstance(task, (SeedBatchTask, SelfTeachingTask))


@torch.no_grad()
def training_losses(
    task: Task, model: nn.Module, accelerator: Accelerator
) -> list[float]:
    """Return the mean loss over training batches, one for each network of a stack."""
    inside = task.tasks[0] if isinstance(task, StackedTask) else task
    if inside.loss_in_training_only:
        model.train()
        for module in model.modules():
            if isinstance(module, _BatchNorm):
                module.eval()  # otherwise its statistics would change
    set_seed(epoch_seed(task.seed, 0, _PURPOSE))
    batches = feed(task_checks.make_loader(task, 0), accelerator.device)
    found = []
    for batch in islice(batches, _MOST_BATCHES):
        moved = send_to_device(batch, accelerator.device)
        with accelerator.autocast():
            found.append(_losses(task, model, moved).double())
    model.eval()
    mean = torch.stack(found).mean(0)
    if isinstance(task, StackedTask):
        mean[task.has_stopped.to(mean.device)] = torch.nan
    return [float(value) for value in mean]


def _losses(task: Task, model: nn.Module, batch: object) -> Tensor:
    if isinstance(task, StackedTask):
        return task.tasks[0].stacked_losses(cast(Stacked, unwrap(model)), batch)
    return task_checks.loss_of(task, model, batch).reshape(1)
