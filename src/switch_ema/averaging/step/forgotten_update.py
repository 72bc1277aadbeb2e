"""Notices training whose averager has no optimizer and gets no update() call."""

import functools
import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.hooks import RemovableHandle

MANY_STEPS = 100
"""Steps after which update() counts as forgotten; delayed updates wait for fewer."""


class ForgottenUpdate:
    """Counts up to ``MANY_STEPS`` steps of the optimizers of some parameters.

    Only an averager without an optimizer has one, until its first ``update()``.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self._parameters = {id(parameter) for parameter in parameters}
        self._strangers: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._count = 0
        _follow_all_optimizers()
        _WAITING.add(self)

    @property
    def suspected(self) -> bool:
        """Whether ``MANY_STEPS`` steps were made."""
        return self._count >= MANY_STEPS

    def note(self, optimizer: Optimizer) -> None:
        """Count a step, if it was one of these parameters."""
        if optimizer in self._strangers:
            return
        held = (p for group in optimizer.param_groups for p in group["params"])
        if not any(id(p) in self._parameters for p in held):
            self._strangers.add(optimizer)
            return
        self._count += 1
        if self.suspected:
            self.remove()

    def remove(self) -> None:
        """Stop counting."""
        _WAITING.discard(self)


_WAITING: "weakref.WeakSet[ForgottenUpdate]" = weakref.WeakSet()


@functools.cache
def _follow_all_optimizers() -> RemovableHandle:
    # Never removed: the hooks of a step may not change while they run.
    return register_optimizer_step_post_hook(_note)


def _note(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    if torch.compiler.is_compiling() or not _WAITING:
        return
    for waiting in list(_WAITING):
        waiting.note(optimizer)
