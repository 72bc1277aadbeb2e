"""Opt-in flat storage: the tensors of a model re-laid into one buffer.

One ``lerp_`` over one buffer is the limit of what a separate pass over memory can
reach. The parameters stay the same objects (optimizers, DDP and names do not notice);
only their memory moves.
"""

from collections import defaultdict
from dataclasses import dataclass

from torch import Tensor

from switch_ema.averaging.kernels import is_dense

_ALIGNMENT = 64
"""Bytes: one cache line, and the widest vector registers."""


@dataclass(frozen=True)
class FlatPair:
    """Two equal layouts: one over the model's memory, one over the shadow's."""

    live: Tensor
    shadow: Tensor
    indices: list[int]
    addresses: list[int]

    @staticmethod
    def build(
        live: list[Tensor], shadow: list[Tensor]
    ) -> tuple[list["FlatPair"], list[Tensor]]:
        """Move both lists into flat buffers, one per dtype and device.

        Returns the pairs and the shadow's new tensors, which are views.
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
        views = list(shadow)
        pairs = []
        for indices in kinds.values():
            members = [live[i] for i in indices]
            flat_live, live_views = _lay_out(members, members)
            flat_shadow, shadow_views = _lay_out([shadow[i] for i in indices], members)
            for i, here, there in zip(indices, live_views, shadow_views, strict=True):
                live[i].data = here
                views[i] = there
            addresses = [member.data_ptr() for member in members]
            pairs.append(FlatPair(flat_live, flat_shadow, indices, addresses))
        return pairs, views

    def holds(self, live: list[Tensor]) -> bool:
        """Whether all the model's tensors still lie in the buffer."""
        return [live[i].data_ptr() for i in self.indices] == self.addresses

    def seems_to_hold(self, live: list[Tensor]) -> bool:
        """Whether the first and the last tensor do."""
        return all(
            live[self.indices[at]].data_ptr() == self.addresses[at] for at in (0, -1)
        )


def _lay_out(values: list[Tensor], like: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Copy values into one buffer, with the strides of ``like``."""
    line = _ALIGNMENT // like[0].element_size()
    offsets, end = [], 0
    for tensor in like:
        offsets.append(end)
        end += -(-tensor.numel() // line) * line
    buffer = like[0].new_zeros(max(end, 1))
    views = [
        buffer.as_strided(tensor.shape, tensor.stride(), offset)
        for tensor, offset in zip(like, offsets, strict=True)
    ]
    for view, value in zip(views, values, strict=True):
        view.copy_(value)
    return buffer, views
