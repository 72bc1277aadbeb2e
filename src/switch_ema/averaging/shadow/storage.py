"""How a shadow is kept: which tensors, in which dtype, where."""

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
    """How a shadow is kept."""

    dtype: torch.dtype | None = None
    """The dtype of real parameters; None: the model's, but at least float32."""
    device: torch.device | None = None
    """None: beside the live tensor."""
    buffers: Buffers = "statistics"
    """Which floating-point buffers are averaged; the others are copied."""
    flat: bool = False
    """Whether live and shadow tensors are laid into one buffer each."""

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
        """Choose where and in which dtype the slot's tensor is kept."""
        return self.device or slot.tensor.device, self._dtype_of(slot)

    def _dtype_of(self, slot: Slot) -> torch.dtype:
        own = slot.tensor.dtype
        if not own.is_floating_point:
            return own
        # Statistics are small and need their precision: bfloat16 is for weights.
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
    # "cuda" alone is the current one of them; tensors say which one they are on.
    device = None if device is None else torch.empty(0, device=device).device
    return Storage(dtype, device, buffers, flat)


def empty_layout(
    like: list[Tensor], dtype: torch.dtype | None = None
) -> tuple[Tensor, list[Tensor]]:
    """Make one buffer and views into it, with the shapes and strides of ``like``.

    Move tensors into it one by one and drop each at once: its pages are only taken
    when they are written, and memory that is freed can be taken again.
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
