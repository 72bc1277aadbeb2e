"""Unsharded averager states, for checkpoints that one process writes."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from switch_ema.averaging.averager import Averager
from switch_ema.averaging.distributed.fsdp import (
    has_the_whole,
    is_sharded,
    local_part,
    part_of,
    whole,
)


def gathered(state: Any) -> Any:
    """Replace sharded tensors with whole ones; every process must call it.

    Tensors are gathered one at a time. Only rank 0, which writes the checkpoint, keeps
    them, on the CPU; the other ranks get empty tensors.
    """
    if isinstance(state, Mapping):
        return {name: gathered(value) for name, value in state.items()}
    if not isinstance(state, Tensor) or not is_sharded(state):
        return state
    value = whole(state)
    return value.cpu() if has_the_whole() else value.new_empty(0)


@torch.no_grad()
def load_live(averager: Averager, weights: Mapping[str, Tensor]) -> None:
    """Write whole tensors into a model that may be sharded.

    Args:
        averager: the model's averager.
        weights: the gathered result of ``averager.live_tensors()``.
    """
    for name, live in averager.live_tensors().items():
        if name in weights:
            local_part(live).copy_(part_of(weights[name], live))
