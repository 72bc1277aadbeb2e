"""Tensors of a shadow grouped by the kernel that averages them.

The lists are built once. What an update pays for is looking the live tensors up and
comparing their dtypes and devices, so that a model that was cast or moved in between
is noticed before anything is averaged. Between two updates a training step has swept
the caches, so each tensor that is touched costs more than it seems: hence the packs.
"""

import operator

import torch
from torch import Tensor

from switch_ema.averaging import kernels
from switch_ema.averaging.flat import FlatPair
from switch_ema.averaging.tracking import Slot


class Group:
    """Tensors of one kind that one kernel serves."""

    def __init__(self, kind: str, slots: list[Slot], shadow: list[Tensor]) -> None:
        self.kind = kind
        self.shadow = shadow
        self._places = [(slot.owner, slot.key) for slot in slots]
        self._seen = [slot.tensor for slot in slots]
        self._dtypes = [tensor.dtype for tensor in self._seen]
        self._devices = [tensor.device for tensor in self._seen]

    def live(self) -> list[Tensor] | None:
        """Look the live tensors up; None if they are no longer what they were."""
        live = [owner.get(key) for owner, key in self._places]
        if not all(map(operator.is_, live, self._seen)):
            present = [tensor for tensor in live if tensor is not None]
            if [t.shape for t in present] != [t.shape for t in self.shadow]:
                return None
            self._seen = present
        return self._seen if self._is_unchanged(self._seen) else None

    def is_current(self) -> bool:
        """Whether the group still describes the model, looked at thoroughly."""
        return self.live() is not None

    def _is_unchanged(self, live: list[Tensor]) -> bool:
        if [tensor.dtype for tensor in live] != self._dtypes:
            return False
        return [tensor.device for tensor in live] == self._devices

    def average_(self, live: list[Tensor], weight: float, step: int) -> None:
        """Run the group's kernel."""
        if self.kind == "same":
            kernels.lerp_(self.shadow, live, weight)
        elif self.kind == "cast":
            kernels.lerp_cast_(self.shadow, live, weight)
        elif self.kind == "dithered":
            kernels.lerp_dithered_(self.shadow, live, weight, step)


class PackedGroup(Group):
    """Many small vectors on the CPU, such as those of normalisation layers.

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
        self.shadow = list(torch.split(self._buffer, sizes))
        first = begin = end = 0
        for index, size in enumerate(sizes):
            if end + size - begin > self._GATHERED:
                pack = slice(first, index), self._gathered[begin:end]
                self._packs.append(pack)
                first, begin = index, end
            end += size
        self._packs.append((slice(first, len(sizes)), self._gathered[begin:end]))

    def _is_unchanged(self, live: list[Tensor]) -> bool:
        """Look at the first: gathering casts what was cast in part by itself."""
        first = live[0]
        return (first.dtype, first.device) == (self._dtypes[0], self._devices[0])

    def is_current(self) -> bool:
        """Whether the group still describes the model, looked at thoroughly."""
        live = self.live()
        return live is not None and super()._is_unchanged(live)

    def average_(self, live: list[Tensor], weight: float, step: int) -> None:
        """Gather and average."""
        for members, gathered in self._packs:
            torch.cat(live[members], out=gathered)
        self._buffer.lerp_(self._gathered, weight)


class FlatGroup(Group):
    """Tensors whose live memory was laid into one buffer, for those who ask for it.

    An update touches no single tensor but the first and the last, which shows a model
    that was moved or cast as a whole; one moved in parts is noticed by
    :meth:`is_current`, at the next switch, averaged view or end of an epoch.
    """

    def __init__(self, kind: str, slots: list[Slot], shadow: list[Tensor]) -> None:
        super().__init__(kind, slots, shadow)
        self._pairs, self.shadow = FlatPair.build(self._seen, shadow)

    def live(self) -> list[Tensor] | None:
        """Return the live tensors unless they have left the buffer as a whole."""
        holds = all(pair.seems_to_hold(self._seen) for pair in self._pairs)
        return self._seen if holds else None

    def is_current(self) -> bool:
        """Whether every tensor is where it was laid."""
        found = super().live()
        return found is not None and all(pair.holds(found) for pair in self._pairs)

    def average_(self, live: list[Tensor], weight: float, step: int) -> None:
        """Average whole buffers."""
        for pair in self._pairs:
            pair.shadow.lerp_(pair.live, weight)


GROUPS: dict[str, type[Group]] = {"packed": PackedGroup, "flat": FlatGroup}
"""Kinds that have a class of their own."""
