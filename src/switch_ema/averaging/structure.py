"""Notices when a model gains or loses tensors, at the price of one comparison."""

from typing import Any

from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)

from switch_ema.averaging.tracking import Filter, Slot, all_slots, select


class Structure:
    """The tensors of a model as they were when it was last looked at."""

    def __init__(self, model: nn.Module, include: Filter, exclude: Filter) -> None:
        self._model = model
        self._filters = include, exclude
        _watch.start()
        self.look()

    def look(self) -> None:
        """Take the model as it is now."""
        slots = all_slots(self._model)
        chosen = select(slots, *self._filters)
        self.slots: list[Slot] = [slot for slot in chosen if not slot.is_lazy]
        self._places = {slot.place for slot in slots}
        self._lazy = sum(slot.is_lazy for slot in slots)
        self._changes = _watch.changes

    def may_have_changed(self) -> bool:
        """Whether a closer look is due; this is all that an update pays for."""
        return bool(self._lazy) or self._changes != _watch.changes

    def check(self) -> bool:
        """Walk through the model; return whether lazy modules have made new tensors.

        Raises:
            RuntimeError: there are tensors that are new, or gone.
        """
        slots = all_slots(self._model)
        places = {slot.place for slot in slots}
        if places != self._places:
            new = sorted(name for name, *_ in places - self._places)
            gone = sorted(name for name, *_ in self._places - places)
            raise RuntimeError(
                f"The model has changed since averaging began (new: {_few(new)}; gone: "
                f"{_few(gone)}); call refresh() to go on with the model as it is."
            )
        self._changes = _watch.changes
        return sum(slot.is_lazy for slot in slots) < self._lazy


class _Watch:
    """Counts assignments of parameters and modules anywhere in the process.

    torch calls registration hooks for each of them, so that an unchanged count means
    an unchanged model, without a walk through its modules at every update.
    """

    def __init__(self) -> None:
        self.changes = 0
        self._started = False

    def start(self) -> None:
        if not self._started:
            self._started = True
            register_module_parameter_registration_hook(self._changed)
            register_module_module_registration_hook(self._changed)
            register_module_buffer_registration_hook(self._buffer_changed)

    def _changed(self, module: nn.Module, name: str, value: Any) -> None:
        self.changes += 1

    def _buffer_changed(self, module: nn.Module, name: str, value: Any) -> None:
        # Modules replace buffers in forward; slots follow that by themselves.
        if not isinstance(module._buffers.get(name), Tensor):
            self.changes += 1


_watch = _Watch()


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "") or "none"
