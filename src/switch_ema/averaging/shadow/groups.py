"""Tensors of a shadow grouped by the kernel that averages them.

The lists are built once. Between two updates a training step has swept the caches, so
each object that an update touches costs more than it seems: hence nothing is looked up
that cannot have changed, and small vectors are averaged in packs.
"""

import operator
from collections.abc import Iterable

import torch
from torch import Tensor

from switch_ema.averaging.distributed.fsdp import is_sharded
from switch_ema.averaging.kernels import native, torch_ops
from switch_ema.averaging.model.slots import Slot
from switch_ema.averaging.model.watch import watch
from switch_ema.averaging.shadow.flat import empty_layout


class Group:
    """Tensors of one kind that one kernel serves.

    A group owns the list of shadow tensors that it is given, and may replace them.
    """

    def __init__(self, kind: str, slots: list[Slot], shadow: list[Tensor]) -> None:
        self.kind = kind
        self.shadow = shadow
        self._places = [(slot.owner, slot.key) for slot in slots]
        self._is_sharded = is_sharded(slots[0].tensor)
        self._seen = [slot.local for slot in slots]
        # FSDP2 registers gathered and sharded tensors in turn.
        self.stays = all(slot.stays for slot in slots)
        self.is_shared = slots[0].is_shared
        self._may_be_replaced = self._is_sharded or not self.stays
        self._changes = watch.changes
        self._dtypes = [tensor.dtype for tensor in self._seen]
        self._devices = [tensor.device for tensor in self._seen]

    def live(self) -> list[Tensor] | None:
        """Return the live tensors; None if they are no longer what they were.

        Tensors that stay are looked up again only after something was assigned to a
        module, and only the first and the last are looked at: enough for a model that
        was cast or moved as a whole.
        """
        if (self._may_be_replaced or watch.changes != self._changes) and (
            not self._look_up()
        ):
            return None
        return self._seen if self._is_as_before((0, -1)) else None

    def is_current(self) -> bool:
        """Whether the group still describes the model, looked at thoroughly."""
        return self._look_up() and self._is_as_before(range(len(self._seen)))

    def _look_up(self) -> bool:
        live = [owner.get(key) for owner, key in self._places]
        if self._is_sharded:
            live = [getattr(tensor, "_local_tensor", None) for tensor in live]
        if not all(map(operator.is_, live, self._seen)):
            present = [tensor for tensor in live if tensor is not None]
            if [t.shape for t in present] != [t.shape for t in self.shadow]:
                return False
            # The memory of another type, such as a quantised one, is not its value.
            if list(map(type, present)) != list(map(type, self._seen)):
                return False
            self._seen = present
        self._changes = watch.changes
        return True

    def _is_as_before(self, indices: Iterable[int]) -> bool:
        return all(
            self._seen[i].dtype == self._dtypes[i]
            and self._seen[i].device == self._devices[i]
            for i in indices
        )

    @torch.no_grad()
    def average_(self, live: list[Tensor], weight: float, step: int) -> None:
        """Run the group's kernel."""
        if self.kind == "same":
            self._lerp_(live, weight)
        elif self.kind == "cast":
            torch_ops.lerp_cast_(self.shadow, live, weight)
        elif self.kind == "dithered":
            torch_ops.lerp_dithered_(self.shadow, live, weight, step)

    def finish(self) -> None:
        """Complete what an update may have left to do."""
        return None  # only offloaded groups leave something

    def _lerp_(self, live: list[Tensor], weight: float) -> None:
        try:
            torch_ops.lerp_(self.shadow, live, weight)
        except RuntimeError:
            # A part of the model was cast or moved. The kernel goes through the list
            # in order, so all before the first such tensor has been averaged.
            pairs = enumerate(zip(self.shadow, live, strict=True))
            other = (i for i, (a, b) in pairs if _form(a) != _form(b))
            first = next(other, None)
            if first is None:
                raise
            torch_ops.lerp_cast_(self.shadow[first:], live[first:], weight)


class DenseGroup(Group):
    """Tensors without gaps in memory, on the CPU.

    Their shadow lies in one buffer, in the order of the live memory. The kernels go by
    memory alone, so every update makes sure first that all is where it was: the group
    holds on to the live memory, so that another tensor cannot take its address.
    """

    SHADOW: torch.dtype | None = None
    """The dtype of the shadow if it is not that of the live tensors."""

    def __init__(self, kind: str, slots: list[Slot], shadow: list[Tensor]) -> None:
        super().__init__(kind, slots, shadow)
        _, views = empty_layout(self._seen, self.SHADOW)
        for i, view in enumerate(views):
            shadow[i] = view.copy_(shadow[i])
        self._is_native = native.is_available(shadow[0].dtype)
        plain = map(Tensor.is_contiguous, self._seen)
        self._strided = [i for i, is_plain in enumerate(plain) if not is_plain]
        self._forms = self._present_forms()
        self._hold(self._addresses())

    def live(self) -> list[Tensor] | None:
        """Return the live tensors unless one has another form than it had."""
        if self._is_native:
            native.fetch(self._lines)
        live = super().live()
        if live is None or self._present_forms() != self._forms:
            return None
        if (addresses := self._addresses()) != self._held:
            if not self._is_as_before(range(len(live))):
                return None
            self._hold(addresses)
        return live

    def is_current(self) -> bool:
        """Whether every tensor is what it was."""
        return super().is_current() and self._present_forms() == self._forms

    def average_(self, live: list[Tensor], weight: float, step: int) -> None:
        """Average by memory."""
        if self._is_native:
            native.lerp_(self._table, self.shadow[0].dtype, weight)
        else:
            with torch.no_grad():
                torch_ops.lerp_dense_(self.shadow, live, weight)

    def _present_forms(self) -> tuple[list[bool], list[int], list[tuple[int, ...]]]:
        """Return what tells orders in memory apart, from what is cheap to ask for."""
        contiguous = list(map(Tensor.is_contiguous, self._seen))
        strides = [self._seen[i].stride() for i in self._strided]
        return contiguous, list(map(Tensor.numel, self._seen)), strides

    def _addresses(self) -> list[int]:
        return list(map(Tensor.data_ptr, self._seen))

    def _hold(self, addresses: list[int]) -> None:
        self._held = addresses
        self._memory = [tensor.detach() for tensor in self._seen]
        sizes = map(Tensor.numel, self._seen)
        self._table = native.table_of([self.shadow, self._seen], sizes)
        self._lines = native.lines_of(self._seen)


class DitheredGroup(DenseGroup):
    """Contiguous tensors on the CPU whose shadow is in bfloat16."""

    SHADOW = torch.bfloat16

    def average_(self, live: list[Tensor], weight: float, step: int) -> None:
        """Average and round in one pass."""
        phases = torch_ops.rounding_phases(self.shadow[0].device)
        offset = torch_ops.rounding_offset(step)
        native.lerp_dithered_(self._table, live[0].dtype, weight, phases, offset)


class WidenedGroup(DenseGroup):
    """Dense bfloat16 tensors on the CPU whose shadow is in float32."""

    SHADOW = torch.float32

    def average_(self, live: list[Tensor], weight: float, step: int) -> None:
        """Average and widen in one pass."""
        native.lerp_widened_(self._table, weight)


class PackedGroup(Group):
    """Many small vectors on the CPU, such as those of normalisation layers.

    For machines without a compiler: in C, small vectors cost no more than large ones.
    Their shadow lies in one buffer. An update gathers the live vectors, which is one
    call for many, and averages the buffer at once.
    """

    LARGEST = 8192
    """Elements of a vector that is worth packing."""
    _GATHERED = 32768 - 1
    """Elements per call: beyond this, torch.cat copies tensor by tensor."""

    def __init__(self, kind: str, slots: list[Slot], shadow: list[Tensor]) -> None:
        super().__init__(kind, slots, shadow)
        self._buffer = torch.cat(shadow)
        self._gathered = torch.empty_like(self._buffer)
        self._packs: list[tuple[slice, Tensor]] = []
        sizes = [tensor.numel() for tensor in shadow]
        shadow[:] = torch.split(self._buffer, sizes)
        first = begin = end = 0
        for index, size in enumerate(sizes):
            if end + size - begin > self._GATHERED:
                pack = slice(first, index), self._gathered[begin:end]
                self._packs.append(pack)
                first, begin = index, end
            end += size
        self._packs.append((slice(first, len(sizes)), self._gathered[begin:end]))

    @torch.no_grad()
    def average_(self, live: list[Tensor], weight: float, step: int) -> None:
        """Gather and average."""
        for members, gathered in self._packs:
            torch.cat(live[members], out=gathered)
        self._buffer.lerp_(self._gathered, weight)


def _form(tensor: Tensor) -> tuple[torch.dtype, torch.device]:
    return tensor.dtype, tensor.device
