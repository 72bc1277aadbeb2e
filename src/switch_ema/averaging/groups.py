"""Tensors of a shadow grouped by the kernel that averages them.

The lists are built once. What an update pays for is looking the live tensors up and
comparing their dtypes and devices, so that a model that was cast or moved in between
is noticed before anything is averaged.
"""

import operator

from torch import Tensor

from switch_ema.averaging import kernels
from switch_ema.averaging.flat import FlatPair
from switch_ema.averaging.tracking import Slot


class Group:
    """Tensors that one kernel serves."""

    def __init__(self, kind: str, slots: list[Slot], shadow: list[Tensor]) -> None:
        self.kind = kind
        self.shadow = shadow
        self._places = [(slot.owner, slot.key) for slot in slots]
        self._flat: list[FlatPair] = []
        self._seen = [slot.tensor for slot in slots]
        self._dtypes = [tensor.dtype for tensor in self._seen]
        self._devices = [tensor.device for tensor in self._seen]

    def flatten(self) -> None:
        """Lay the live and the shadow tensors into one buffer each."""
        self._flat, self.shadow = FlatPair.build(self._seen, self.shadow)

    def live(self) -> list[Tensor] | None:
        """Look the live tensors up; None if they are no longer what they were."""
        live = [owner.get(key) for owner, key in self._places]
        if not all(map(operator.is_, live, self._seen)):
            present = [tensor for tensor in live if tensor is not None]
            if [t.shape for t in present] != [t.shape for t in self.shadow]:
                return None
            self._seen = present
        if [t.dtype for t in self._seen] != self._dtypes:
            return None
        if [t.device for t in self._seen] != self._devices:
            return None
        return self._seen

    def average_(self, live: list[Tensor], weight: float, step: int) -> None:
        """Run the group's kernel."""
        if self._flat and all(pair.holds(live) for pair in self._flat):
            for pair in self._flat:
                pair.shadow.lerp_(pair.live, weight)
        elif self.kind == "same":
            kernels.lerp_(self.shadow, live, weight)
        elif self.kind == "cast":
            kernels.lerp_cast_(self.shadow, live, weight)
        elif self.kind == "dithered":
            kernels.lerp_dithered_(self.shadow, live, weight, step)
        else:
            kernels.copy_(self.shadow, live)
