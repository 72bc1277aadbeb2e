"""An averager's state with whole tensors, for checkpoints that one process writes."""

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
    """Replace sharded tensors by whole ones; every process has to call it.

    They are gathered one by one, and only rank 0, which is to write them, keeps them,
    on the CPU; the others get empty tensors in their place.
    """
    if isinstance(state, Mapping):
        return {name: gathered(value) for name, value in state.items()}
    if not isinstance(state, Tensor) or not is_sharded(state):
        return state
    value = whole(state)
    return value.cpu() if has_the_whole() else value.new_empty(0)


@torch.no_grad()
def load_live(averager: Averager, weights: Mapping[str, Tensor]) -> None:
    """Write whole tensors into the model, which each process may hold a part of.

    Args:
        averager: the averager of the model.
        weights: what ``averager.live_tensors()`` returned, gathered.
    """
    for name, live in averager.live_tensors().items():
        if name in weights:
            local_part(live).copy_(part_of(weights[name], live))
