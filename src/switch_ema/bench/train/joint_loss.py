"""Gradient accumulation for losses that compare the examples of a step.

The loss needs all embeddings of the step, while memory holds the activations of one
micro-batch. So all micro-batches are embedded twice (Gao et al., "Scaling Deep
Contrastive Learning Batch Size under Memory Limited Setup", 2021): first without
activations, for the loss and its gradient with respect to the embeddings; then one by
one with activations, through which those gradients flow on. The result is the gradient
of the whole batch, except that batch norm sees micro-batches.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from switch_ema._random import random_numbers_kept
from switch_ema.bench.optimizers.step import frozen_statistics
from switch_ema.bench.task import JointLossTask

Rows = tuple[Tensor, ...]


def back_propagate_jointly(
    task: JointLossTask,
    model: nn.Module,
    batches: Sequence[Any],
    *,
    accelerator: Accelerator,
    embed: Callable[[Any], Rows],
    synchronising: Callable[[bool], AbstractContextManager[Any]],
) -> Tensor:
    """Add the gradient of one step's loss over all micro-batches.

    Args:
        task: has the loss.
        model: the model in training.
        batches: this worker's part of the micro-batches, on the model's device.
        accelerator: sets the precision.
        embed: embeds a micro-batch, through DDP if there are several workers.
        synchronising: context of each backward pass; its argument is whether the
            pass is the last one of the step.

    Returns:
        The loss of the whole step, detached.
    """
    gather, autocast = task.shard.gather, accelerator.autocast
    with autocast():
        targets = _joined([task.targets(model, batch) for batch in batches])
    # The second pass repeats the random numbers, and records the statistics.
    with random_numbers_kept(), frozen_statistics(model), torch.no_grad(), autocast():
        parts = [task.embed(model, batch) for batch in batches]
    embeddings = tuple(rows.requires_grad_() for rows in _joined(parts))
    with autocast():
        loss = task.joint_loss(
            model, tuple(map(gather, embeddings)), tuple(map(gather, targets))
        )
    accelerator.backward(loss)
    counts = [len(part[0]) for part in parts]
    gradients = zip(*(torch.split(_grad(r), counts) for r in embeddings), strict=True)
    last = len(batches) - 1
    for index, gradient in enumerate(gradients):
        with synchronising(index == last):
            with autocast():
                rows = embed(batches[index])
            torch.autograd.backward(rows, gradient)
    return loss.detach()


def _joined(parts: Sequence[Rows]) -> Rows:
    return tuple(map(torch.cat, zip(*parts, strict=True)))


def _grad(rows: Tensor) -> Tensor:
    return torch.zeros_like(rows) if rows.grad is None else rows.grad
