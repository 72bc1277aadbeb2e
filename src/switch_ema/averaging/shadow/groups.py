"""Tensors of a shadow grouped by the kernel that averages them.

Each kind of group is a class that defines which tensors it takes (``fits``) and how it
averages them (``average_``). The lists of a group are built once. The training step
between two updates evicts everything from the caches, so each object that an update
touches is a cache miss: tensors that cannot have changed are not looked up again, and
small vectors are packed.
"""

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from typing import ClassVar

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from switch_ema.averaging._torch import local_tensor, version_of
from switch_ema.averaging.distributed.fsdp import is_sharded
from switch_ema.averaging.kernels import native, rounding, torch_ops
from switch_ema.averaging.kernels.spare_memory import SpareMemory
from switch_ema.averaging.model.changes import watch
from switch_ema.averaging.model.slots import Slot
from switch_ema.averaging.shadow.storage import Storage, empty_layout

_FEW = 32
"""Tensors that the step just made has left in the cache: prefetching gains nothing."""


class Group(ABC):
    """Tensors that one kernel averages.

    A group owns its list of shadow tensors and may replace them.
    """

    copies: ClassVar[bool] = False
    """Whether the group copies the given shadow tensors into new memory, so that the
    live tensors themselves can be passed."""

    def __init__(self, slots: list[Slot], shadow: list[Tensor]) -> None:
        self.shadow = shadow
        self._places = [(slot.owner, slot.key) for slot in slots]
        self._is_sharded = is_sharded(slots[0].tensor)
        self._seen = [slot.local for slot in slots]
        # FSDP2 alternates between gathered and sharded tensors in the module.
        self._stays = all(slot.stays for slot in slots)
        self._is_shared = slots[0].is_shared
        self._may_be_replaced = self._is_sharded or not self._stays
        # Buffers may hold infinities on purpose, such as masks; weights never do.
        self._finite_only = slots[0].is_buffer
        self._changes = watch.changes
        # Whether the last update or check found all averages finite; None if unknown.
        # Set it to None before writing averages other than by torch's operations.
        self.is_finite: int | None = None
        self._versions: list[int] = []
        self._dtypes = [tensor.dtype for tensor in self._seen]
        self._devices = [tensor.device for tensor in self._seen]

    @classmethod
    @abstractmethod
    def fits(cls, slot: Slot, storage: Storage) -> bool:
        """Whether a group of this class can average the tensor in ``slot``."""

    @classmethod
    def kind_of(cls, slot: Slot) -> tuple[object, ...]:
        """Return the properties that all tensors of one group must share."""
        return slot.is_buffer, slot.is_shared, slot.local.dtype

    @abstractmethod
    def average_(self, live: list[Tensor], weight: float, step: int) -> None:
        """``shadow += weight * (live - shadow)``.

        Args:
            live: what :meth:`live` returned.
            weight: the weight of the live tensors, ``1 - decay``.
            step: the number of optimizer steps so far.
        """

    @property
    def can_be_averaged_in_step(self) -> bool:
        """Whether an optimizer may average these tensors within its step.

        Shadow and parameter must have the same strides. Buffers are excluded because
        optimizers do not update them, and shared memory because another parameter's
        update may change it after the average.
        """
        return False

    def live(self) -> list[Tensor] | None:
        """Return the live tensors; None if they have changed and need new groups.

        Parameters are looked up again only after an assignment to a module, and only
        the dtype and device of the first and the last are checked: enough to notice a
        model that was cast or moved as a whole.
        """
        if not self._is_looked_up():
            return None
        return self._seen if self._is_as_before((0, -1)) else None

    def is_current(self) -> bool:
        """Whether the group still describes the model; checks every tensor."""
        if not self._look_up() or not self._is_as_before(range(len(self._seen))):
            return False
        return [t.shape for t in self._seen] == [t.shape for t in self.shadow]

    def in_few_tensors(self) -> list[Tensor]:
        """Return the shadows of the parameters in as few tensors as possible."""
        return self.shadow

    def is_known_finite(self) -> bool:
        """Whether the last update or check found only finite averages, still unchanged.

        Autograd's version of a tensor shows whether torch has written it since.
        """
        versions = [version_of(tensor) for tensor in self.in_few_tensors()]
        if versions != self._versions:
            self._versions, self.is_finite = versions, None
        return bool(self.is_finite)

    def exchange_table(self) -> "native.Table | None":
        """Return addresses and sizes of live and shadow tensors, to exchange values.

        None if they cannot be exchanged by address, or have changed.
        """
        return None

    def split_columns(self) -> "tuple[list[Tensor], list[Tensor], SpareMemory] | None":
        """Return float32 tensors and their bfloat16 averages, to exchange by halves.

        The third is memory for the exchange. None for other dtypes, or if the tensors
        have changed.
        """
        return None

    def written(self) -> None:
        """Tell autograd that the live tensors were written by address."""
        increment_version(self._seen)

    def finish(self) -> None:
        """Complete work that the last update has deferred."""
        return None  # most groups defer nothing

    def let_go(self) -> None:
        """Prepare for other groups of the same tensors."""
        return None  # most groups leave the live tensors where they are

    def _is_looked_up(self) -> bool:
        must = self._may_be_replaced or watch.changes != self._changes
        return not must or self._look_up()

    def _look_up(self) -> bool:
        live = [owner.get(key) for owner, key in self._places]
        if self._is_sharded:
            live = [local_tensor(tensor) for tensor in live]
        if not all(map(operator.is_, live, self._seen)):
            present = [tensor for tensor in live if tensor is not None]
            if [t.shape for t in present] != [t.shape for t in self.shadow]:
                return False
            # A tensor subclass, such as a quantised one, may keep its values elsewhere.
            if list(map(type, present)) != list(map(type, self._seen)):
                return False
            self._seen = present
        self._changes = watch.changes
        return True

    def _is_as_before(self, indices: Collection[int]) -> bool:
        if len(indices) == len(self._seen):
            dtypes = [tensor.dtype for tensor in self._seen]
            devices = [tensor.device for tensor in self._seen]
            return dtypes == self._dtypes and devices == self._devices
        return all(
            self._seen[i].dtype == self._dtypes[i]
            and self._seen[i].device == self._devices[i]
            for i in indices
        )


class SameGroup(Group):
    """Tensors whose shadow has their dtype and device, with any strides."""

    @classmethod
    def fits(cls, slot: Slot, storage: Storage) -> bool:
        """Take every tensor whose shadow has its dtype and device."""
        return storage.place_of(slot) == (slot.local.device, slot.local.dtype)

    @property
    def can_be_averaged_in_step(self) -> bool:
        """Whether these are parameters of an accelerator, each in its own memory."""
        return not self.shadow[0].is_cpu and self._stays and not self._is_shared

    @torch.no_grad()
    def average_(self, live: list[Tensor], weight: float, step: int) -> None:
        """Average with one call for the whole list."""
        if self._finite_only:
            torch_ops.lerp_finite_(self.shadow, live, weight)
            return
        try:
            torch_ops.lerp_(self.shadow, live, weight)
        except RuntimeError:
            # Part of the model was cast or moved. The kernel processes the list in
            # order, so all tensors before the first such one have been averaged.
            pairs = enumerate(zip(self.shadow, live, strict=True))
            first = next((i for i, (a, b) in pairs if not torch_ops.agree(a, b)), None)
            if first is None:
                raise
            torch_ops.lerp_cast_(self.shadow[first:], live[first:], weight)


class DeviceGroup(Group):
    """Buffers on an accelerator, and all tensors there that have to be cast.

    Kernel launches dominate the cost on accelerators, so all are averaged together.
    Non-finite values, which :func:`torch_ops.lerp_finite_` handles at each update, are
    handled only when the average is read: a buffer that was infinite or NaN and no
    longer is restarts its average from its current value.
    """

    @classmethod
    def fits(cls, slot: Slot, storage: Storage) -> bool:
        """Take tensors whose shadow is on their device."""
        live, (device, dtype) = slot.local, storage.place_of(slot)
        is_there = device == live.device and device.type not in ("cpu", "meta")
        return is_there and (slot.is_buffer or dtype != live.dtype)

    @classmethod
    def kind_of(cls, slot: Slot) -> tuple[object, ...]:
        """Put buffers and parameters of any dtype together."""
        return ()

    def __init__(self, slots: list[Slot], shadow: list[Tensor]) -> None:
        super().__init__(slots, shadow)
        self._buffers = [i for i, slot in enumerate(slots) if slot.is_buffer]
        self._may_be_infinite = False

    def in_few_tensors(self) -> list[Tensor]:
        """Return the parameters only; buffers may hold infinities."""
        buffers = set(self._buffers)
        return [own for i, own in enumerate(self.shadow) if i not in buffers]

    @torch.no_grad()
    def average_(self, live: list[Tensor], weight: float, step: int) -> None:
        """Cast where needed, then average, with one call each."""
        torch_ops.lerp_lists_(self.shadow, live, weight)
        self._may_be_infinite = bool(self._buffers)

    @torch.no_grad()
    def finish(self) -> None:
        """Copy live values where an infinity was averaged."""
        if self._may_be_infinite:
            shadow = [self.shadow[i] for i in self._buffers]
            torch_ops.copy_where_not_finite_(
                shadow, [self._seen[i] for i in self._buffers]
            )
            self._may_be_infinite = False


class CastGroup(Group):
    """Tensors whose shadow has another dtype or is on another device."""

    @classmethod
    def fits(cls, slot: Slot, storage: Storage) -> bool:
        """Take every tensor."""
        return True

    @torch.no_grad()
    def average_(self, live: list[Tensor], weight: float, step: int) -> None:
        """Cast piece by piece."""
        lerp_ = torch_ops.lerp_finite_ if self._finite_only else torch_ops.lerp_cast_
        lerp_(self.shadow, live, weight)


class RoundedGroup(Group):
    """Tensors whose shadow is in bfloat16, rounded so that it does not stall."""

    @classmethod
    def fits(cls, slot: Slot, storage: Storage) -> bool:
        """Take tensors whose shadow is in bfloat16."""
        return storage.place_of(slot)[1] == torch.bfloat16

    @torch.no_grad()
    def average_(self, live: list[Tensor], weight: float, step: int) -> None:
        """Average in float32 and round piece by piece."""
        rounding.lerp_dithered_(self.shadow, live, weight, step)


class MemoryGroup(Group):
    """Dense tensors on the CPU.

    Their shadow lies in one buffer, with the strides of the live tensors. The kernels
    take raw addresses, so every update first checks that nothing has moved. The group
    keeps the live memory alive, so no other tensor can reuse its address.
    """

    copies = True
    _DTYPE: ClassVar[torch.dtype | None] = None
    """The dtype of the shadow if it differs from the live tensors'."""
    _KERNEL: ClassVar[str] = "lerp"
    """The kernel in C that averages the group."""

    def __init__(self, slots: list[Slot], shadow: list[Tensor]) -> None:
        super().__init__(slots, shadow)
        self._buffer, views = empty_layout(self._seen, self._DTYPE)
        for i, view in enumerate(views):
            shadow[i] = view.copy_(shadow[i])
        self._is_native = native.is_available(shadow[0].dtype)
        plain = map(Tensor.is_contiguous, self._seen)
        self._strided = [i for i, is_plain in enumerate(plain) if not is_plain]
        self._layouts = self._present_layouts()
        self._hold(self._addresses())

    def live(self) -> list[Tensor] | None:
        """Return the live tensors unless the size or strides of one have changed."""
        if self._fetch is not None:
            self._fetch(1)
        if not self._is_looked_up() or self._present_layouts() != self._layouts:
            return None
        # The memory is kept alive, so an equal address means the same memory and dtype.
        if (addresses := self._addresses()) != self._held:
            if not self._is_as_before(range(len(self._seen))):
                return None
            self._hold(addresses)
        return self._seen

    def is_current(self) -> bool:
        """Whether no tensor has changed."""
        return super().is_current() and self._present_layouts() == self._layouts

    def in_few_tensors(self) -> list[Tensor]:
        """Return the one buffer that holds all shadows."""
        return [self._buffer]

    def _present_layouts(self) -> tuple[list[bool], list[int], list[tuple[int, ...]]]:
        """Return cheap attributes that change whenever strides or sizes do."""
        contiguous = list(map(Tensor.is_contiguous, self._seen))
        strides = []
        if self._strided:
            strides = [self._seen[i].stride() for i in self._strided]
        return contiguous, list(map(Tensor.numel, self._seen)), strides

    def _addresses(self) -> list[int]:
        return list(map(Tensor.data_ptr, self._seen))

    def _hold(self, addresses: list[int]) -> None:
        self._held = addresses
        self._bytes: native.Table | None = None
        self._memory = [tensor.detach() for tensor in self._seen]
        sizes = map(Tensor.numel, self._seen)
        self._table = native.table_of([self.shadow, self._seen], sizes)
        self._fetch: Callable[[int], None] | None = None
        if self._is_native:
            dtype = self.shadow[0].dtype
            if len(self._seen) > _FEW:
                self._lines = native.lines_of(self._seen)
                self._fetch = native.prepare("fetch", dtype, self._lines)
            kernel = "lerp_finite" if self._finite_only else self._KERNEL
            self._lerp = native.prepare(kernel, dtype, self._table)


class DenseGroup(MemoryGroup):
    """Tensors whose shadow has their dtype, float32 or float64."""

    @classmethod
    def fits(cls, slot: Slot, storage: Storage) -> bool:
        """Take dense tensors; without a compiler, no buffers and no small vectors."""
        live, dtype = slot.local, slot.local.dtype
        if not (SameGroup.fits(slot, storage) and torch_ops.is_plain(live)):
            return False
        if dtype not in (torch.float32, torch.float64):
            return False
        is_large = slot.stays and not PackedGroup.fits(slot, storage)
        return native.is_available(dtype) or is_large

    @property
    def can_be_averaged_in_step(self) -> bool:
        """Whether these are parameters that share no memory."""
        return self._stays and not self._is_shared

    def exchange_table(self) -> "native.Table | None":
        """Return addresses and sizes: shadow and live tensors have the same dtype."""
        if not self._is_native or not self.is_current():
            return None
        if (addresses := self._addresses()) != self._held:
            self._hold(addresses)
        if self._bytes is None:
            # In reverse: the check of the shadow has just left its end in the cache.
            live, shadow = self._seen[::-1], self.shadow[::-1]
            sizes = [tensor.nbytes for tensor in shadow]
            self._bytes = native.table_of([live, shadow], sizes)
        return self._bytes

    def average_(self, live: list[Tensor], weight: float, step: int) -> None:
        """Average all tensors in one pass over memory."""
        if self._is_native:
            self.is_finite = self._lerp(torch.get_num_threads(), weight)
        else:
            with torch.no_grad():
                torch_ops.lerp_dense_(self.shadow, live, weight)


class RoundedMemoryGroup(MemoryGroup):
    """Contiguous tensors whose shadow is in bfloat16."""

    _DTYPE = torch.bfloat16

    def __init__(self, slots: list[Slot], shadow: list[Tensor]) -> None:
        super().__init__(slots, shadow)
        self._spare = SpareMemory()

    @classmethod
    def fits(cls, slot: Slot, storage: Storage) -> bool:
        """Take contiguous float32 and bfloat16 tensors, if the C kernels work."""
        live, (device, dtype) = slot.local, storage.place_of(slot)
        return (
            dtype == torch.bfloat16
            and live.dtype in (torch.float32, torch.bfloat16)
            and torch_ops.is_plain(live)
            and live.is_contiguous()
            and device.type == "cpu"
            and native.is_available()
        )

    def average_(self, live: list[Tensor], weight: float, step: int) -> None:
        """Average and round in one pass over memory."""
        phases = rounding.rounding_phases(self.shadow[0].device)
        offset = rounding.rounding_offset(step)
        native.lerp_dithered_(self._table, live[0].dtype, weight, phases, offset)

    def split_columns(self) -> "tuple[list[Tensor], list[Tensor], SpareMemory] | None":
        """Return live tensors, shadow and the memory for exchanging them."""
        if self._dtypes[0] != torch.float32 or not self.is_current():
            return None
        return self._seen, self.shadow, self._spare


class WidenedGroup(MemoryGroup):
    """Dense bfloat16 tensors whose shadow is in float32."""

    _DTYPE = torch.float32
    _KERNEL = "lerp_widened"

    @classmethod
    def fits(cls, slot: Slot, storage: Storage) -> bool:
        """Take dense bfloat16 parameters, if the C kernels work."""
        live = slot.local
        return (
            slot.stays
            and live.dtype == torch.bfloat16
            and storage.place_of(slot) == (live.device, torch.float32)
            and torch_ops.is_plain(live)
            and native.is_available()
        )

    def average_(self, live: list[Tensor], weight: float, step: int) -> None:
        """Average and widen in one pass over memory."""
        self.is_finite = self._lerp(torch.get_num_threads(), weight)


class PackedGroup(Group):
    """Many small vectors, such as those of normalisation layers.

    Used on machines without a C compiler; the C kernels handle small vectors without
    extra cost. The shadow lies in one buffer. An update gathers many live vectors with
    one call and averages the buffer at once.
    """

    copies = True
    _LARGEST = 8192
    """Maximum number of elements of a vector that is worth packing."""
    _GATHERED = 32768 - 1
    """Elements per call: beyond this, torch.cat copies tensor by tensor."""

    @classmethod
    def fits(cls, slot: Slot, storage: Storage) -> bool:
        """Take small vectors on the CPU whose shadow has their dtype."""
        live = slot.local
        if live.device.type != "cpu" or not SameGroup.fits(slot, storage):
            return False
        is_vector = live.ndim == 1 and live.stride() == (1,)
        return is_vector and 0 < live.numel() <= cls._LARGEST

    def __init__(self, slots: list[Slot], shadow: list[Tensor]) -> None:
        super().__init__(slots, shadow)
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
        if self._finite_only:
            torch_ops.lerp_finite_([self._buffer], [self._gathered], weight)
        else:
            self._buffer.lerp_(self._gathered, weight)
