"""Replicated models (DDP): each process has a copy, and buffers may differ.

DDP keeps the weights equal on all ranks, but broadcasts rank 0's buffers, such as
batch-norm statistics, only before the next forward pass. The average is updated before
that, so without :func:`share_buffers` each rank would average its own statistics.
"""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from switch_ema.averaging._torch import is_joining


def find_replica(model: nn.Module) -> DistributedDataParallel | None:
    """Return the DDP wrapper that broadcasts the model's buffers, if any."""
    for module in model.modules():
        if isinstance(module, DistributedDataParallel) and module.broadcast_buffers:
            return module
    return None


def has_uneven_data(model: nn.Module) -> bool:
    """Whether DDP's ``join()`` is used, with different numbers of steps per rank."""
    return any(
        isinstance(module, DistributedDataParallel) and is_joining(module)
        for module in model.modules()
    )


@torch.no_grad()
def share_buffers(replica: DistributedDataParallel) -> None:
    """Broadcast rank 0's buffers now, as DDP would before the next forward pass.

    Not with ``join()``: a rank that ran out of data takes no step and would not take
    part, so the broadcast would hang.
    """
    if is_joining(replica):
        return
    kinds: dict[tuple[torch.dtype, torch.device], list[Tensor]] = defaultdict(list)
    for name, buffer in replica.module.named_buffers():
        if name not in replica.parameters_to_ignore:
            kinds[buffer.dtype, buffer.device].append(buffer)
    group = replica.process_group
    source = torch.distributed.get_global_rank(group, 0)
    for buffers in kinds.values():
        flat = torch.cat([buffer.reshape(-1) for buffer in buffers])
        torch.distributed.broadcast(flat, source, group=group)
        parts = torch.split(flat, [buffer.numel() for buffer in buffers])
        for buffer, part in zip(buffers, parts, strict=True):
            buffer.copy_(part.view(buffer.shape))


@contextmanager
def keeping_buffers_apart(replica: DistributedDataParallel | None) -> Iterator[None]:
    """Have forward passes not replace each rank's buffers by those of rank 0."""
    if replica is None:
        yield
        return
    replica.broadcast_buffers = False
    try:
        yield
    finally:
        replica.broadcast_buffers = True


@torch.no_grad()
def mean_over_ranks(
    replica: DistributedDataParallel, tensors: list[Tensor], weight: int
) -> int:
    """Replace tensors by their weighted mean over the ranks; all ranks must call.

    Args:
        replica: the ranks.
        tensors: as many on each rank, on one device.
        weight: the weight of this rank's tensors, at least 0.

    Returns:
        The sum of the weights; if it is 0, the tensors are left as they are.
    """
    own = [tensor.reshape(-1).double() * weight for tensor in tensors]
    flat = torch.cat([*own, own[0].new_tensor([weight])])
    torch.distributed.all_reduce(flat, group=replica.process_group)
    total = int(flat[-1])
    if total:
        parts = torch.split(flat[:-1] / total, [tensor.numel() for tensor in tensors])
        for tensor, part in zip(tensors, parts, strict=True):
            tensor.copy_(part.view(tensor.shape))
    return total
