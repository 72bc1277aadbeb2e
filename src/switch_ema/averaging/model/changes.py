"""Notices when a model gains or loses tensors, at the price of one comparison."""

from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)

from switch_ema.averaging._torch import buffers_of
from switch_ema.averaging.model.slots import (
    Filter,
    Place,
    Slot,
    all_slots,
    select,
    without_views,
)


class Watch:
    """Counts assignments to modules anywhere in the process.

    torch calls registration hooks for each of them, so that an unchanged count means
    an unchanged model, without a walk through its modules at every update.
    """

    def __init__(self) -> None:
        self.changes = 0
        """Assignments of parameters and modules, and of buffers that are new."""
        self.buffers = 0
        """Assignments that replaced a buffer by another tensor."""
        self.is_blind = False
        """Whether compiled code assigns buffers, which is not counted."""
        self._started = False

    def start(self) -> None:
        """Begin to count, once per process."""
        if not self._started:
            self._started = True
            register_module_parameter_registration_hook(self._changed)
            register_module_module_registration_hook(self._changed)
            register_module_buffer_registration_hook(self._buffer_changed)

    def _changed(self, module: nn.Module, name: str, value: Any) -> None:
        self.changes += 1

    def _buffer_changed(self, module: nn.Module, name: str, value: Any) -> None:
        if torch.compiler.is_compiling():
            self.is_blind = True  # to read a count here would compile at every step
            return
        known = buffers_of(module).get(name)
        if known is not value:  # they are the same after an assignment such as +=
            self.buffers += 1
        # Modules replace buffers in forward; slots follow that by themselves.
        if known is None and value is not None:
            self.changes += 1


watch = Watch()
"""The one counter of this process."""


class Structure:
    """The tensors of a model as they were when it was last looked at.

    A closer look is due when ``changes`` differs from ``watch.changes``, or while
    ``lazy`` tensors have yet to be made. An update compares these two by itself, since
    that is all it can afford at every step.
    """

    def __init__(self, model: nn.Module, include: Filter, exclude: Filter) -> None:
        self._model = model
        self._filters = include, exclude
        watch.start()
        self.look()

    def look(self) -> None:
        """Take the model as it is now."""
        slots = all_slots(self._model)
        chosen = select(slots, *self._filters)
        self.slots: list[Slot] = without_views([s for s in chosen if not s.is_lazy])
        self._places = {slot.place: slot.is_buffer for slot in slots}
        self.lazy = sum(slot.is_lazy for slot in slots)
        self.changes = watch.changes

    def check(self) -> bool:
        """Walk through the model; return whether to take it as it is now.

        It is to be taken as it is where lazy modules have made their tensors, and
        where buffers were added or removed, such as caches.

        Raises:
            RuntimeError: parameters were added or removed.
        """
        slots = all_slots(self._model)
        places = {slot.place: slot.is_buffer for slot in slots}
        new = [place for place in places if place not in self._places]
        gone = [place for place in self._places if place not in places]
        if not all((places | self._places)[place] for place in (*new, *gone)):
            raise RuntimeError(
                f"The model has changed since averaging began (new: {_few(new)}; gone: "
                f"{_few(gone)}); call refresh() to go on with the model as it is."
            )
        self.changes = watch.changes
        return bool(new or gone) or sum(slot.is_lazy for slot in slots) < self.lazy


def _few(places: list[Place]) -> str:
    names = sorted(name for name, *_ in places)
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "") or "none"
