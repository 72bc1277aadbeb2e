"""Whose weights are in the model: the live ones, or the average of some averager."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Protocol
from weakref import WeakKeyDictionary

from torch import nn

from switch_ema.averaging.view.swap import insist


class Shown(Protocol):
    """An average that can be put into its model and taken out again."""

    def swap_in(self) -> None:
        """Put the average into the model."""

    def swap_out(self) -> None:
        """Put the live weights back."""


class Stage:
    """What the open blocks of one model show.

    The innermost block decides, also between several averagers of one model: at any
    time at most one shadow is exchanged with the live weights, so that a checkpoint
    taken inside a block never mixes the two.
    """

    def __init__(self) -> None:
        self.blocks: list[Shown | None] = []
        """What each open block shows, the innermost last; None: the live weights."""

    @contextmanager
    def showing(self, shadow: Shown | None) -> Iterator[None]:
        """Hold ``shadow``, or the live weights for None, in the model for a block."""
        below = self.blocks[-1] if self.blocks else None
        self.blocks.append(shadow)
        try:
            _exchange(below, shadow)
            yield
        finally:
            try:
                insist(partial(_exchange, shadow, below))
            finally:
                self.blocks.pop()


_STAGES: WeakKeyDictionary[nn.Module, Stage] = WeakKeyDictionary()


def stage_of(model: nn.Module) -> Stage:
    """Return the stage of an unwrapped model, shared by all its averagers."""
    return _STAGES.setdefault(model, Stage())


def _exchange(old: Shown | None, new: Shown | None) -> None:
    if old is new:
        return
    if old is not None:
        old.swap_out()
    if new is not None:
        try:
            new.swap_in()
        except BaseException:
            if old is not None:
                old.swap_in()
            raise
