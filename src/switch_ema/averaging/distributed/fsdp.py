"""Sharded parameters (FSDP2): each process holds a part of them, as a DTensor.

Averaging is elementwise, so each process averages its own part without communication.
The shadow consists of plain local tensors; only its outputs, such as a state dict, are
DTensors again.
"""

import sys
from typing import Any

import torch
from torch import Tensor, nn

from switch_ema.averaging._torch import local_tensor


def is_sharded(tensor: Tensor) -> bool:
    """Whether the tensor is a DTensor."""
    return local_tensor(tensor) is not None


def local_part(tensor: Tensor) -> Tensor:
    """Return the local part of a tensor: all of it if it is not sharded."""
    inside = local_tensor(tensor)
    return tensor if inside is None else inside


def is_sharder(module: nn.Module) -> bool:
    """Whether FSDP2 manages the module's parameters."""
    # A model with such a module has imported FSDP2 already; others need no import.
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return fsdp is not None and isinstance(module, fsdp.FSDPModule)


def refuse_fsdp1(model: nn.Module) -> None:
    """Refuse FSDP1 models, whose parameters are fragments of one flat vector.

    Raises:
        TypeError: the model is or contains an FSDP1 module.
    """
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is None:
        return
    for name, module in model.named_modules():
        if isinstance(module, fsdp.FullyShardedDataParallel):
            raise TypeError(
                f"{name or 'model'} is wrapped in FullyShardedDataParallel (FSDP1), "
                "whose parameters cannot be averaged; use FSDP2, "
                "torch.distributed.fsdp.fully_shard, instead."
            )


def like_model_tensor(model_tensor: Tensor, part: Tensor) -> Tensor:
    """Return a local part as a DTensor like the model's, sharing its memory."""
    if not is_sharded(model_tensor):
        return part
    from torch.distributed.tensor import DTensor

    mesh, placements = _layout(model_tensor)
    # Without a shape, from_local assumes that all parts are as large as this one.
    return DTensor.from_local(
        part,
        mesh,
        placements,
        run_check=False,
        shape=model_tensor.shape,
        stride=model_tensor.stride(),
    )


def part_of(value: Tensor, model_tensor: Tensor) -> Tensor:
    """Return this process's part of a saved tensor, without communication.

    A whole tensor is sharded like the model's; a sharded one must match it already.
    """
    if is_sharded(value) or not is_sharded(model_tensor):
        return local_part(value)
    from torch.distributed.tensor import distribute_tensor

    mesh, placements = _layout(model_tensor)
    whole = value.detach().to(local_part(model_tensor).device)
    return local_part(distribute_tensor(whole, mesh, placements, src_data_rank=None))


def division_mismatch(value: Any, model_tensor: Tensor) -> str | None:
    """Describe how a tensor's sharding differs from the model's, None if equal."""
    if not isinstance(value, Tensor) or not is_sharded(value):
        return None
    if is_sharded(model_tensor):
        (mesh, cut), (own_mesh, own_cut) = _layout(value), _layout(model_tensor)
        if (tuple(mesh.shape), cut) == (tuple(own_mesh.shape), own_cut):
            return None
        here = f"the model is sharded over {own_mesh.size()}"
        if own_mesh.size() == mesh.size():
            here = "the model is sharded differently"
    else:
        here = "the model is not sharded"
    return f"the shards of {_layout(value)[0].size()} processes, and {here}"


def shard_name(tensor: Tensor) -> str:
    """Tell this process's shard from the others; empty for a tensor that is whole.

    Replicas of a shard have the same name.
    """
    if not is_sharded(tensor):
        return ""
    mesh, placements = _layout(tensor)
    place = zip(mesh.get_coordinate(), placements, strict=True)
    return " ".join(str(at) for at, placement in place if placement.is_shard())


def mesh_ranks(tensor: Tensor) -> tuple[int, ...]:
    """Return the ranks that hold the parts of a sharded tensor."""
    return tuple(sorted(_layout(tensor)[0].mesh.flatten().tolist()))


def whole(value: Tensor) -> Tensor:
    """Gather a sharded tensor on all processes of its mesh; all must call."""
    if not is_sharded(value):
        return value
    gathered: Tensor = value.full_tensor()  # type: ignore[attr-defined]
    return gathered


def rank() -> int:
    """Return the rank of this process; 0 without a process group."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank()
    return 0


def has_the_whole() -> bool:
    """Whether this process keeps gathered tensors: rank 0."""
    return rank() == 0


def _layout(tensor: Any) -> tuple[Any, tuple[Any, ...]]:
    return tensor.device_mesh, tuple(tensor.placements)
