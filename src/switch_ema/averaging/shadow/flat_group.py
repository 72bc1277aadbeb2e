"""The group of tensors whose live memory was laid into one buffer, by request."""

import torch
from torch import Tensor

from switch_ema.averaging.kernels import torch_ops
from switch_ema.averaging.model.slots import Slot
from switch_ema.averaging.model.watch import watch
from switch_ema.averaging.shadow.flat import FlatPair
from switch_ema.averaging.shadow.groups import Group


class FlatGroup(Group):
    """Parameters and buffers in one block of memory.

    Where a module has assigned another buffer, that is a stray, which each update
    copies into the block first. What leaves the block otherwise is noticed by
    :meth:`is_current` only, which runs at switches and averaged views.
    """

    def __init__(self, kind: str, slots: list[Slot], shadow: list[Tensor]) -> None:
        super().__init__(kind, slots, shadow)
        self._pairs = FlatPair.build(self._seen, shadow)
        self._laid = [tensor.detach() for tensor in self._seen]
        self._addresses = list(map(Tensor.data_ptr, self._seen))
        self._buffers = {i for i, slot in enumerate(slots) if slot.is_buffer}
        self._know_strays(set())

    def live(self) -> list[Tensor] | None:
        """Return the live tensors unless they have left the block as a whole.

        They are looked up after something was assigned to a module.
        """
        counts = watch.changes, watch.buffers
        if counts != (self._changes, self._assigned) or watch.is_blind:
            if not self._look_up():
                return None
            outside = self._outside()
            if not outside <= self._buffers or not self._is_as_before(outside):
                return None
            self._know_strays(outside)
        are_there = all(
            self._seen[i].data_ptr() == self._addresses[i] for i in self._ends
        )
        return self._seen if are_there and self._is_as_before(self._ends) else None

    def is_current(self) -> bool:
        """Whether every tensor is where it was laid, or known not to be."""
        is_as_known = self.live() is not None and super().is_current()
        return is_as_known and self._outside() <= self._strays

    @torch.no_grad()
    def average_(self, live: list[Tensor], weight: float, step: int) -> None:
        """Average whole blocks."""
        if self._strays:
            laid = [self._laid[i] for i in self._strays]
            torch_ops.copy_(laid, [live[i] for i in self._strays])
        for pair in self._pairs:
            pair.average_(weight)

    def _outside(self) -> set[int]:
        places = enumerate(zip(self._seen, self._addresses, strict=True))
        return {i for i, (tensor, address) in places if tensor.data_ptr() != address}

    def _know_strays(self, strays: set[int]) -> None:
        self._strays, self._assigned = strays, watch.buffers
        inside = [i for i in range(len(self._seen)) if i not in strays]
        self._ends = {*inside[:1], *inside[-1:]}
