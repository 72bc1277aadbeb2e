"""Storage of a shadow: which tensors, in which dtype, on which device."""

from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from switch_ema._checks import check_choice
from switch_ema.averaging.model.slots import Slot

Buffers = Literal["statistics", "average", "copy"]
"""Which floating-point buffers are averaged: those that hold the running statistics of
normalisation layers, all, or none. The others are copied."""

_ALIGNMENT = 64
"""Bytes: one cache line, and the widest vector registers."""


@dataclass(frozen=True)
class Storage:
    """Storage options of a shadow."""

    dtype: torch.dtype | None = None
    """The dtype of real parameters; None: the model's, but at least float32."""
    device: torch.device | None = None
    """None: the device of the live tensor."""
    buffers: Buffers = "statistics"
    """Which floating-point buffers are averaged; the others are copied."""
    flat: bool = False
    """Whether live and shadow tensors are moved into one buffer each."""

    def averages(self, slot: Slot) -> bool:
        """Whether the slot's tensor is averaged, not copied."""
        if slot.is_gone:
            return False
        tensor = slot.tensor
        if not (tensor.is_floating_point() or tensor.is_complex()):
            return False
        if not slot.is_buffer or self.buffers == "average":
            return True
        return self.buffers == "statistics" and slot.is_statistic

    def without_flat(self) -> "Storage":
        """Return the same storage in separate tensors."""
        return replace(self, flat=False)

    def place_of(self, slot: Slot) -> tuple[torch.device, torch.dtype]:
        """Return device and dtype of the shadow of a slot's tensor."""
        return self.device or slot.tensor.device, self._dtype_of(slot)

    def _dtype_of(self, slot: Slot) -> torch.dtype:
        own = slot.tensor.dtype
        if not own.is_floating_point:
            return own
        # Statistics are small and need precision, so bfloat16 applies to weights only.
        if self.dtype and not (slot.is_buffer and self.dtype == torch.bfloat16):
            return self.dtype
        return torch.promote_types(own, torch.float32)


def as_storage(
    buffers: Buffers,
    dtype: torch.dtype | None,
    device: torch.device | str | None,
    flat: bool,
) -> Storage:
    """Check an averager's arguments and turn them into a storage."""
    check_choice("buffers", buffers, get_args(Buffers))
    if dtype not in (None, torch.float32, torch.float64, torch.bfloat16):
        raise ValueError(
            "dtype must be None, torch.float32, torch.float64 or torch.bfloat16, "
            f"got {dtype}."
        )
    # Resolve "cuda" to the current device's index, for comparison with tensors.
    device = None if device is None else torch.empty(0, device=device).device
    return Storage(dtype, device, buffers, flat)


def empty_layout(
    like: list[Tensor], dtype: torch.dtype | None = None
) -> tuple[Tensor, list[Tensor]]:
    """Make one buffer and views into it, with the shapes and strides of ``like``.

    Move tensors into it one by one and free each at once: pages are allocated only when
    written, so the peak is far below two copies.
    """
    dtype = dtype or like[0].dtype
    line = _ALIGNMENT // dtype.itemsize
    offsets, end = [], 0
    for tensor in like:
        offsets.append(end)
        end += -(-tensor.numel() // line) * line
    buffer = like[0].new_zeros(max(end, 1), dtype=dtype)
    views = [
        buffer.as_strided(tensor.shape, tensor.stride(), offset)
        for tensor, offset in zip(like, offsets, strict=True)
    ]
    return buffer, views
