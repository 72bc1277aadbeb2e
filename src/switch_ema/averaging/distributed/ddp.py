"""Replicated models (DDP): each process has a copy, and buffers may differ.

DDP keeps the weights equal on all ranks. It sets buffers, such as the statistics of
normalisation layers, to those of rank 0 only before the next forward pass. The average
is taken before that, so that without this file each rank would average its own.
"""

from collections import defaultdict

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from switch_ema.averaging._torch import is_joining


def find_replica(model: nn.Module) -> DistributedDataParallel | None:
    """Return the DDP wrapper that keeps the model's buffers equal, if there is one."""
    for module in model.modules():
        if isinstance(module, DistributedDataParallel) and module.broadcast_buffers:
            return module
    return None


def has_uneven_data(model: nn.Module) -> bool:
    """Whether DDP's ``join()`` is used, so that ranks may take different steps."""
    return any(
        isinstance(module, DistributedDataParallel) and is_joining(module)
        for module in model.modules()
    )


@torch.no_grad()
def share_buffers(replica: DistributedDataParallel) -> None:
    """Set the buffers to rank 0's now, as DDP would before the next forward pass.

    Not with ``join()``: a rank whose data has ended takes no step, so it would be
    missing here, and all would wait for it.
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
