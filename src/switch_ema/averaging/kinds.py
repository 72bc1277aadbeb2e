"""Which group, and so which kernel, averages a tensor."""

import torch

from switch_ema.averaging import kernels
from switch_ema.averaging.groups import DenseGroup, FlatGroup, Group, PackedGroup
from switch_ema.averaging.offload import OffloadedGroup
from switch_ema.averaging.sharded import is_sharded
from switch_ema.averaging.storage import Storage
from switch_ema.averaging.tracking import Slot

GROUPS: dict[str, type[Group]] = {
    "same": Group,
    "cast": Group,
    "dithered": Group,
    "offloaded": OffloadedGroup,
    "flat": FlatGroup,
    "packed": PackedGroup,
    "dense": DenseGroup,
}

MOVING = {"flat", "packed", "dense"}
"""Kinds whose group copies a shadow to where it will stay."""


def kind_of(slot: Slot, storage: Storage) -> str:
    """Choose the kind of a tensor that is averaged."""
    live = slot.local
    place = device, dtype = storage.place_of(slot)
    if dtype == torch.bfloat16:
        return "dithered"
    if device.type == "cpu" and live.device.type not in ("cpu", "meta"):
        return "offloaded"
    if place != (live.device, live.dtype):
        return "cast"
    if storage.flat and slot.stays:
        if is_sharded(slot.tensor):
            raise ValueError(
                "flat=True needs a model that is not sharded: FSDP2 lays out the "
                f"memory of {slot.name} by itself."
            )
        return "flat"
    if device.type != "cpu":
        return "same"
    is_vector = live.ndim == 1 and live.stride() == (1,)
    if is_vector and 0 < live.numel() <= PackedGroup.LARGEST:
        return "packed"
    is_real = dtype in (torch.float32, torch.float64)
    return "dense" if slot.stays and is_real and kernels.is_dense(live) else "same"
