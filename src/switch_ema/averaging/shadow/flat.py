"""``flat=True``: the tensors of a model moved into one buffer.

One ``lerp_`` over one buffer is the fastest possible separate pass over memory. The
parameters stay the same objects, so optimizers, DDP and names are not affected; only
their memory moves.
"""

from collections import defaultdict
from dataclasses import dataclass
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from switch_ema.averaging._torch import metadata_addresses
from switch_ema.averaging.distributed.fsdp import is_sharded
from switch_ema.averaging.kernels import native, torch_ops
from switch_ema.averaging.model.changes import watch
from switch_ema.averaging.model.slots import Slot
from switch_ema.averaging.shadow.groups import Group, SameGroup
from switch_ema.averaging.shadow.storage import Storage, empty_layout


@dataclass(frozen=True)
class _FlatPair:
    """A buffer of live memory and one of shadow memory, with the same layout."""

    live: Tensor
    shadow: Tensor
    table: native.Table

    @staticmethod
    def build(live: list[Tensor], shadow: list[Tensor]) -> list["_FlatPair"]:
        """Move both lists into flat buffers, one per dtype and device.

        The shadow's tensors are replaced in their list by views.
        """
        for tensor in live:
            if not torch_ops.is_dense(tensor):
                raise ValueError(
                    "flat=True needs dense parameters, got strides "
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
            pairs.append(_FlatPair(flat_live, flat_shadow, table))
        return pairs

    @torch.no_grad()
    def average_(self, weight: float, finite_only: bool) -> int | None:
        """``shadow += weight * (live - shadow)``; see :func:`native.lerp_`."""
        dtype = self.live.dtype
        if self.live.is_cpu and native.is_available(dtype):
            return native.lerp_(self.table, dtype, weight, finite_only)
        if finite_only and self.live.is_cpu:
            torch_ops.lerp_finite_([self.shadow], [self.live], weight)
        else:
            self.shadow.lerp_(self.live, weight)
        return None


class FlatGroup(Group):
    """Parameters and buffers in one block of memory.

    A buffer that a module has replaced is a stray: each update first copies it into the
    block. Other tensors that leave the block are noticed only by :meth:`is_current`,
    which runs at switches and averaged views.
    """

    copies = True

    @classmethod
    def fits(cls, slot: Slot, storage: Storage) -> bool:
        """Take all tensors that can be moved, if the user asked for ``flat``.

        Tensors that are in the block of another averager stay there.

        Raises:
            ValueError: a parameter cannot be moved.
        """
        if not (storage.flat and SameGroup.fits(slot, storage)):
            return False
        if not (slot.stays or _is_alone(slot)):
            return False
        if is_sharded(slot.tensor):
            raise ValueError(
                "flat=True does not support sharded models: FSDP2 manages the memory "
                f"of {slot.name}."
            )
        if slot.is_shared:
            raise ValueError(
                f"flat=True cannot move {slot.name}, which shares memory with other "
                "tensors of the model."
            )
        return _memory_of(slot.local) not in _BLOCKS

    def __init__(self, slots: list[Slot], shadow: list[Tensor]) -> None:
        super().__init__(slots, shadow)
        self._pairs = _FlatPair.build(self._seen, shadow)
        self._laid = [tensor.detach() for tensor in self._seen]
        self._addresses = list(map(Tensor.data_ptr, self._seen))
        self._buffers = {i for i, slot in enumerate(slots) if slot.is_buffer}
        self._may_be_infinite = False
        self._know_strays(set())
        for pair in self._pairs:
            _BLOCKS[_memory_of(pair.live)] = self

    def let_go(self) -> None:
        """Leave the tensors to the next group, which may move them."""
        for pair in self._pairs:
            _BLOCKS.pop(_memory_of(pair.live), None)

    def live(self) -> list[Tensor] | None:
        """Return the live tensors; None if the model as a whole has left the block.

        They are looked up again only after an assignment to a module.
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

    def in_few_tensors(self) -> list[Tensor]:
        """Return the blocks of the shadow."""
        return [pair.shadow for pair in self._pairs]

    def exchange_table(self) -> "native.Table | None":
        """Return addresses and sizes of the blocks if every tensor is in its block."""
        are_laid = self.is_current() and not self._strays
        if not (native.is_available() and self._laid[0].is_cpu and are_laid):
            return None
        live, shadow = [p.live for p in self._pairs], [p.shadow for p in self._pairs]
        return native.table_of([live, shadow], [block.nbytes for block in live])

    def is_current(self) -> bool:
        """Whether every tensor is in the block or a known stray."""
        is_as_known = self.live() is not None and super().is_current()
        return is_as_known and self._outside() <= self._strays

    @torch.no_grad()
    def average_(self, live: list[Tensor], weight: float, step: int) -> None:
        """Average whole blocks."""
        if self._strays:
            laid = [self._laid[i] for i in self._strays]
            torch_ops.copy_(laid, [live[i] for i in self._strays])
        found = [pair.average_(weight, self._finite_only) for pair in self._pairs]
        self.is_finite = all(found)
        self._may_be_infinite = self._finite_only and not self.shadow[0].is_cpu

    @torch.no_grad()
    def finish(self) -> None:
        """Copy live values where an infinity was averaged; see DeviceGroup."""
        if self._may_be_infinite:
            for pair in self._pairs:
                torch_ops.copy_where_not_finite_([pair.shadow], [pair.live])
            self._may_be_infinite = False

    def _outside(self) -> set[int]:
        places = enumerate(zip(self._seen, self._addresses, strict=True))
        return {i for i, (tensor, address) in places if tensor.data_ptr() != address}

    def _know_strays(self, strays: set[int]) -> None:
        self._strays, self._assigned = strays, watch.buffers
        inside = [i for i in range(len(self._seen)) if i not in strays]
        self._ends = {*inside[:1], *inside[-1:]}


_BLOCKS: "WeakValueDictionary[int, FlatGroup]" = WeakValueDictionary()
"""The groups in use by the storage of their blocks.

Two averagers that both move a model would move it back and forth at each update.
"""


def _memory_of(tensor: Tensor) -> int:
    return metadata_addresses(tensor)[2]


def _is_alone(slot: Slot) -> bool:
    """Whether a buffer shares its memory with no other tensor and can be moved."""
    live = slot.local
    if slot.is_shared or not torch_ops.is_plain(live):
        return False
    return live.untyped_storage().nbytes() == live.nbytes
