"""Counts changes to the structure of modules, so that noticing them is free."""

from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)


class Watch:
    """Counts assignments to modules anywhere in the process.

    torch calls registration hooks for each of them, so that an unchanged count means
    an unchanged model, without a walk through its modules at every update.
    """

    def __init__(self) -> None:
        self.changes = 0
        """Of parameters and modules, and of buffers that were not there."""
        self.buffers = 0
        """Of other buffers than were there."""
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
        known = module._buffers.get(name)
        if known is not value:  # as it is after an assignment like += in place
            self.buffers += 1
        # Modules replace buffers in forward; slots follow that by themselves.
        if known is None and value is not None:
            self.changes += 1


watch = Watch()
