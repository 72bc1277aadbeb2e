"""Counts steps of a model whose averager was given no optimizer and no update()."""

import functools
import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.hooks import RemovableHandle

MANY = 100
"""Untold steps that show a forgotten update(); delayed updates wait for fewer."""


class UntoldSteps:
    """Counts up to ``MANY`` steps of the optimizers of some parameters.

    Only an averager without an optimizer has one, until its first ``update()``.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self._parameters = {id(parameter) for parameter in parameters}
        self._strangers: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._count = 0
        _follow_all_optimizers()
        _WAITING.add(self)

    @property
    def are_many(self) -> bool:
        """Whether ``MANY`` steps were made."""
        return self._count >= MANY

    def note(self, optimizer: Optimizer) -> None:
        """Count a step, if it was one of these parameters."""
        if optimizer in self._strangers:
            return
        held = (p for group in optimizer.param_groups for p in group["params"])
        if not any(id(p) in self._parameters for p in held):
            self._strangers.add(optimizer)
            return
        self._count += 1
        if self.are_many:
            self.remove()

    def remove(self) -> None:
        """Stop counting."""
        _WAITING.discard(self)


_WAITING: "weakref.WeakSet[UntoldSteps]" = weakref.WeakSet()


@functools.cache
def _follow_all_optimizers() -> RemovableHandle:
    # Never removed: the hooks of a step may not change while they run.
    return register_optimizer_step_post_hook(_note)


def _note(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    if torch.compiler.is_compiling() or not _WAITING:
        return
    for waiting in list(_WAITING):
        waiting.note(optimizer)
