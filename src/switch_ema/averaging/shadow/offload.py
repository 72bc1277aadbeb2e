"""A shadow on the CPU for a model on an accelerator.

The live weights are copied into page-locked memory on a side stream. The host does not
wait for the copy: the arithmetic runs at the next update, or when the average is
needed, while the accelerator computes the step in between. On devices without streams,
such as MPS, the host waits for the copy.
"""

from typing import Any

import torch
from torch import Tensor

from switch_ema.averaging.kernels import torch_ops
from switch_ema.averaging.model.slots import Slot
from switch_ema.averaging.shadow.groups import Group
from switch_ema.averaging.shadow.storage import Storage


class OffloadedGroup(Group):
    """Tensors on an accelerator whose shadow is on the CPU.

    It needs page-locked memory for another copy of them, in their own dtype.
    """

    @classmethod
    def fits(cls, slot: Slot, storage: Storage) -> bool:
        """Take tensors of an accelerator whose shadow is on the CPU."""
        device, _ = storage.place_of(slot)
        return device.type == "cpu" and slot.local.device.type not in ("cpu", "meta")

    def __init__(self, slots: list[Slot], shadow: list[Tensor]) -> None:
        super().__init__(slots, shadow)
        self._staged = [_page_locked_like(tensor) for tensor in self._seen]
        self._streams = {device: _new_stream(device) for device in set(self._devices)}
        self._copied: list[Any] = []
        self._is_left = False
        self._weight = 0.0

    @torch.no_grad()
    def average_(self, live: list[Tensor], weight: float, step: int) -> None:
        """Start the copy; :meth:`finish` averages."""
        self.finish()  # before the copies of the last update are overwritten
        self._copied = [self._copy(device, live) for device in self._streams]
        self._weight, self._is_left = weight, True

    def finish(self) -> None:
        """Average the weights that the last update has copied."""
        if self._is_left:
            for event in self._copied:
                if event is not None:
                    event.synchronize()
            finite = self._finite_only
            lerp_ = torch_ops.lerp_finite_ if finite else torch_ops.lerp_cast_
            lerp_(self.shadow, self._staged, self._weight)
            self._copied, self._is_left = [], False

    def _copy(self, device: torch.device, live: list[Tensor]) -> Any:
        """Copy the tensors of one device; return the event that marks its end."""
        pairs = [
            (source, target)
            for source, target in zip(live, self._staged, strict=True)
            if source.device == device
        ]
        module, side = torch.get_device_module(device), self._streams[device]
        if side is None:
            for source, target in pairs:
                target.copy_(source)
            return None
        main = module.current_stream(device)
        side.wait_stream(main)  # the optimizer's step comes first
        with module.stream(side):
            for source, target in pairs:
                target.copy_(source, non_blocking=True)
            done = side.record_event()
        # Any later kernel may write the weights (a step, a clamp, a switch, batch-norm
        # statistics), so the main stream must wait for the copy.
        main.wait_event(done)
        return done


def _page_locked_like(tensor: Tensor) -> Tensor:
    # With equal strides the copy is one transfer.
    try:
        return torch.empty_like(tensor, device="cpu", pin_memory=True)
    except NotImplementedError:  # the backend has no page-locked memory
        return torch.empty_like(tensor, device="cpu")


def _new_stream(device: torch.device) -> Any:
    """Return a new stream of the device, or None if its backend has no streams."""
    kind = getattr(torch.get_device_module(device), "Stream", None)
    return None if kind is None else kind(device)
