"""Which group, and so which kernel, averages a tensor."""

import torch
from torch import Tensor

from switch_ema.averaging.distributed.fsdp import is_sharded
from switch_ema.averaging.kernels import native, torch_ops
from switch_ema.averaging.model.slots import Slot
from switch_ema.averaging.shadow.flat_group import FlatGroup
from switch_ema.averaging.shadow.groups import (
    DenseGroup,
    DitheredGroup,
    Group,
    PackedGroup,
    WidenedGroup,
)
from switch_ema.averaging.shadow.offload import OffloadedGroup
from switch_ema.averaging.shadow.storage import Storage

GROUPS: dict[str, type[Group]] = {
    "same": Group,
    "cast": Group,
    "widened": WidenedGroup,
    "dithered": Group,
    "dithered by memory": DitheredGroup,
    "offloaded": OffloadedGroup,
    "flat": FlatGroup,
    "packed": PackedGroup,
    "dense": DenseGroup,
}

MOVING = {"flat", "packed", "dense", "widened", "dithered by memory"}
"""Kinds whose group copies a shadow to where it will stay."""


def kind_of(slot: Slot, storage: Storage) -> str:
    """Choose the kind of a tensor that is averaged."""
    live = slot.local
    place = device, dtype = storage.place_of(slot)
    if dtype == torch.bfloat16:
        is_wide = live.dtype in (torch.float32, torch.bfloat16)
        by_memory = is_wide and torch_ops.is_plain(live) and live.is_contiguous()
        fits = by_memory and device.type == "cpu" and native.is_available()
        return "dithered by memory" if fits else "dithered"
    if device.type == "cpu" and live.device.type not in ("cpu", "meta"):
        return "offloaded"
    if place != (live.device, live.dtype):
        halves = live.dtype == torch.bfloat16 and place == (live.device, torch.float32)
        by_memory = halves and torch_ops.is_plain(live) and native.is_available()
        return "widened" if by_memory else "cast"
    if storage.flat and (slot.stays or _is_alone(slot)):
        if is_sharded(slot.tensor):
            raise ValueError(
                "flat=True needs a model that is not sharded: FSDP2 lays out the "
                f"memory of {slot.name} by itself."
            )
        if slot.is_shared:
            raise ValueError(
                f"flat=True cannot move {slot.name}: other tensors of the model share "
                "its memory."
            )
        return "flat"
    if device.type != "cpu":
        return "same"
    is_dense = dtype in (torch.float32, torch.float64) and torch_ops.is_plain(live)
    if is_dense and native.is_available(dtype):
        return "dense"
    is_vector = live.ndim == 1 and live.stride() == (1,)
    if is_vector and 0 < live.numel() <= PackedGroup.LARGEST:
        return "packed"
    return "dense" if is_dense and slot.stays else "same"


def group_by_kind(
    slots: list[Slot], tensors: list[Tensor], averaged: list[int], storage: Storage
) -> list[Group]:
    """Put the tensors at the indices ``averaged`` into groups, which may move them."""
    members: dict[tuple[str, tuple[object, ...]], list[int]] = {}
    for i in averaged:
        slot = slots[i]
        # A group looks up sharded tensors or plain ones, not both.
        sharded = is_sharded(slot.tensor)
        kind = kind_of(slot, storage)
        dtypes = tensors[i].dtype, slot.local.dtype
        stays = slot.stays or kind == "flat"
        key = kind, (stays, slot.is_shared, sharded, dtypes)
        members.setdefault(key, []).append(i)
    groups: list[Group] = []
    for (kind, _), indices in members.items():
        shadow = [tensors[i] for i in indices]
        groups.append(GROUPS[kind](kind, [slots[i] for i in indices], shadow))
        for i, tensor in zip(indices, shadow, strict=True):
            tensors[i] = tensor
    return groups


def _is_alone(slot: Slot) -> bool:
    """Whether no other tensor shares a buffer's memory, so that it can be moved."""
    live = slot.local
    if slot.is_shared or not torch_ops.is_plain(live):
        return False
    return live.untyped_storage().nbytes() == live.nbytes
