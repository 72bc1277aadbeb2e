"""Opt-in flat storage: the tensors of a model re-laid into one buffer.

One ``lerp_`` over one buffer is the limit of what a separate pass over memory can
reach. The parameters stay the same objects (optimizers, DDP and names do not notice);
only their memory moves.
"""

from collections import defaultdict
from dataclasses import dataclass

import torch
from torch import Tensor

from switch_ema.averaging.kernels import native
from switch_ema.averaging.kernels.torch_ops import is_dense

_ALIGNMENT = 64
"""Bytes: one cache line, and the widest vector registers."""


@dataclass(frozen=True)
class FlatPair:
    """Two equal layouts: one over the model's memory, one over the shadow's."""

    live: Tensor
    shadow: Tensor
    table: native.Table

    @staticmethod
    def build(live: list[Tensor], shadow: list[Tensor]) -> list["FlatPair"]:
        """Move both lists into flat buffers, one per dtype and device.

        The shadow's tensors are replaced, in their list, by views.
        """
        for tensor in live:
            if not is_dense(tensor):
                raise ValueError(
                    "flat=True needs parameters without gaps in memory, got strides "
                    f"{tensor.stride()} for shape {tuple(tensor.shape)}."
                )
        kinds = defaultdict(list)
        for index, tensor in enumerate(live):
            kinds[tensor.dtype, tensor.device].append(index)
        pairs = []
        for indices in kinds.values():
            members = [live[i] for i in indices]
            flat_shadow, views = empty_layout(members)
            for i, view in zip(indices, views, strict=True):
                shadow[i] = view.copy_(shadow[i])
            flat_live, views = empty_layout(members)
            for member, view in zip(members, views, strict=True):
                member.data = view.copy_(member)
            table = native.table_of([[flat_shadow], [flat_live]], [flat_live.numel()])
            pairs.append(FlatPair(flat_live, flat_shadow, table))
        return pairs

    @torch.no_grad()
    def average_(self, weight: float) -> None:
        """``shadow += weight * (live - shadow)``."""
        dtype = self.live.dtype
        if self.live.is_cpu and native.is_available(dtype):
            native.lerp_(self.table, dtype, weight)
        else:
            self.shadow.lerp_(self.live, weight)


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
