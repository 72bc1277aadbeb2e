"""Tracks which weights a model holds: the live ones or an averager's average."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Protocol, TypeVar
from weakref import WeakKeyDictionary

from torch import nn

from switch_ema.averaging._signals import Interrupts
from switch_ema.averaging.view.swap import insist

T = TypeVar("T")


class Shown(Protocol):
    """An average that can be swapped into its model and out again."""

    def swap_in(self) -> None:
        """Put the average into the model."""

    def swap_out(self) -> None:
        """Put the live weights back."""


class Stage:
    """The open blocks of one model and what they show.

    The innermost block decides, even with several averagers: at most one shadow at a
    time is exchanged with the live weights, so a checkpoint taken inside a block never
    mixes two averages.
    """

    def __init__(self) -> None:
        self.blocks: list[Shown | None] = []
        """What each open block shows, the innermost last; None: the live weights."""

    def show(self, shadow: Shown | None) -> None:
        """Open a block that shows ``shadow``, or the live weights for None."""
        below = self.blocks[-1] if self.blocks else None
        self.blocks.append(shadow)
        try:
            _exchange(below, shadow)
        except BaseException:
            self.blocks.pop()
            raise

    def restore(self) -> None:
        """Close the innermost block."""
        shadow = self.blocks[-1]
        below = self.blocks[-2] if len(self.blocks) > 1 else None
        try:
            insist(partial(_exchange, shadow, below))
        finally:
            self.blocks.pop()

    def showing(self, shadow: Shown | None) -> "Block[None]":
        """Hold ``shadow``, or the live weights for None, in the model for a block."""
        return Block(self, lambda: shadow, None)


class Block(AbstractContextManager[T]):
    """A ``with`` block that shows something and restores it however it is left.

    A Ctrl-C that arrives during an exchange is deferred until the exchange is complete,
    so the average is never left in the model.
    """

    def __init__(
        self,
        stage: Stage,
        choose: Callable[[], Shown | None],
        result: T,
        then: Callable[[], None] | None = None,
    ) -> None:
        self._stage, self._choose, self._result = stage, choose, result
        self._then = then
        self._interrupts: list[Interrupts] = []

    def __enter__(self) -> T:
        """Choose what to show, and put it into the model."""
        shown = self._choose()
        interrupts = Interrupts(_PROTECTED)
        is_open = False
        try:
            interrupts.install()
            self._stage.show(shown)
            is_open = True
            self._interrupts.append(interrupts)
            interrupts.holding = False
            if not interrupts.is_waiting:
                return self._result
        except BaseException:
            self._close(interrupts, is_open)
            raise
        self._close(interrupts, is_open)  # raises the deferred Ctrl-C
        return self._result

    def __exit__(self, *error: object) -> None:
        """Restore what was in the model before; signals are deferred meanwhile."""
        self._close(self._interrupts[-1], is_open=True)
        if self._then is not None:
            self._then()

    def _close(self, interrupts: Interrupts, is_open: bool) -> None:
        interrupts.holding = True
        try:
            if is_open:
                if self._interrupts:
                    self._interrupts.pop()
                self._stage.restore()
        finally:
            interrupts.remove()


# A Ctrl-C between entering __exit__ and setting ``holding`` must be deferred, too.
_PROTECTED = (Block.__exit__.__code__, Block._close.__code__)

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
