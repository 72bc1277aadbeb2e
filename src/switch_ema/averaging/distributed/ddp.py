"""Replicated models (DDP): each process has a copy, and buffers may differ.

DDP keeps the weights equal on all ranks, but broadcasts rank 0's buffers, such as
batch-norm statistics, only before the next forward pass. The average is updated before
that, so without :func:`share_buffers` each rank would average its own statistics.
"""

from collections import defaultdict

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
