"""An averager's state with whole tensors, for checkpoints that one process writes."""

from collections.abc import Mapping
from typing import Any


def gathered(state: Any) -> Any:
    """Replace sharded tensors by whole ones; every process has to call it."""
    if isinstance(state, Mapping):
        return {name: gathered(value) for name, value in state.items()}
    return state.full_tensor() if hasattr(state, "full_tensor") else state


def scattered(state: Any, like: Any) -> Any:
    """Shard whole tensors as those of the same place in ``like`` are."""
    if isinstance(state, Mapping) and isinstance(like, Mapping):
        return {name: scattered(value, like.get(name)) for name, value in state.items()}
    if hasattr(like, "full_tensor") and not hasattr(state, "full_tensor"):
        from torch.distributed.tensor import distribute_tensor

        whole = state.to(like.device)
        return distribute_tensor(whole, like.device_mesh, like.placements)
    return state
