"""An averager's state with whole tensors, for checkpoints that one process writes."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from switch_ema.averaging.distributed.fsdp import whole


def gathered(state: Any) -> Any:
    """Replace sharded tensors by whole ones; every process has to call it."""
    if isinstance(state, Mapping):
        return {name: gathered(value) for name, value in state.items()}
    return whole(state) if isinstance(state, Tensor) else state
