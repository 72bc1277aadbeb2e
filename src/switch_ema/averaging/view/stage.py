"""Tracks which weights a model holds: the live ones or an averager's average."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Protocol, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary, ref

from torch import nn

from switch_ema.averaging._signals import Interrupts
from switch_ema.averaging._torch import buffers_of, parameters_of
from switch_ema.averaging.model.changes import watch
from switch_ema.averaging.model.slots import identity
from switch_ema.averaging.view.swap import insist

T = TypeVar("T")


class Shown(Protocol):
    """An average that can be swapped into its model and out again."""

    def swap_in(self) -> None:
        """Put the average into the model."""

    def swap_out(self) -> None:
        """Put the live weights back."""


class _Open:
    """An open block: what it shows, and the earlier blocks that it hides.

    A block hides the earlier ones of its own stage and of stages that have a tensor in
    common with it. So the averages in sight at one time have no tensor in common and
    can be exchanged in any order.
    """

    def __init__(self, shown: Shown | None, hidden: "list[_Open]") -> None:
        self.shown = shown
        """None: the live weights."""
        self.hidden = hidden
        self.hidden_by = 0
        """How many open blocks hide this one."""

    def hide(self, by: int) -> None:
        """Count this block, 1 or -1, among those that hide the earlier ones."""
        for block in self.hidden:
            block.hidden_by += by


class Stage:
    """The open blocks of one model and what they show.

    The innermost block decides, even with several averagers, of this model or of others
    that have a tensor in common with it, such as a part of it: at most one shadow at a
    time is exchanged with the live weights, so a checkpoint taken inside a block never
    mixes two averages.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model  # its id stays in use as long as the stage exists
        self.blocks: list[_Open] = []
        """The open blocks, the innermost last."""
        self._shares: WeakKeyDictionary[Stage, bool] = WeakKeyDictionary()
        self._changes = watch.changes

    def __reduce__(self) -> tuple[Any, ...]:
        """Become the stage of the copied model."""
        return stage_of, (self._model,)

    @property
    def is_held(self) -> bool:
        """Whether an open block may hide the live values of one of the tensors."""
        return bool(self.blocks) or any(map(self._shares_with, _stages_in_use()))

    def show(self, shown: Shown | None) -> None:
        """Open a block that shows an average, or the live weights for None."""
        stages = [stage for stage in _stages_in_use() if self._shares_with(stage)]
        hidden = [block for stage in stages for block in stage.blocks]
        seen = [block.shown for block in hidden if not block.hidden_by]
        block = _Open(shown, hidden)
        block.hide(1)
        self.blocks.append(block)
        STAGES_IN_USE.add(ref(self, STAGES_IN_USE.discard))
        try:
            _exchange(seen, [shown])
        except BaseException:
            self._forget(block)
            raise

    def restore(self) -> None:
        """Close the innermost block."""
        block = self.blocks[-1]
        seen = [] if block.hidden_by else [block.shown]
        # Those that only this block hides; blocks may be left out of order.
        revealed = [one.shown for one in block.hidden if one.hidden_by == 1]
        try:
            insist(partial(_exchange, seen, revealed))
        finally:
            self._forget(block)

    def showing(self, shown: Shown | None) -> "Block[None]":
        """Hold an average, or the live weights for None, in the model for a block."""
        return Block(self, lambda: shown, None)

    def _forget(self, block: _Open) -> None:
        block.hide(-1)
        block.hidden_by = -1  # it is closed, so nothing reveals it any more
        self.blocks.remove(block)
        if not self.blocks:
            STAGES_IN_USE.discard(ref(self))

    def _shares_with(self, other: "Stage") -> bool:
        """Whether the models have a tensor in common; an assignment may change that."""
        if self._changes != watch.changes:
            self._shares.clear()
            self._changes = watch.changes
        if other not in self._shares:
            apart = _tensors_in(self._model).isdisjoint(_tensors_in(other._model))
            self._shares[other] = other is self or not apart
        return self._shares[other]


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

# By id, because a module may define equality by value.
_STAGES: WeakValueDictionary[int, Stage] = WeakValueDictionary()
# Weak, so that an average that nobody will ever restore can be freed with its model.
STAGES_IN_USE: "set[ref[Stage]]" = set()
"""The stages with open blocks; nearly always there are none."""


def stage_of(model: nn.Module) -> Stage:
    """Return the stage of an unwrapped model, shared by all its averagers."""
    return _STAGES.setdefault(id(model), Stage(model))


def _stages_in_use() -> list[Stage]:
    """List the stages that have open blocks."""
    found = [reference() for reference in tuple(STAGES_IN_USE)]
    return [stage for stage in found if stage is not None]


def _tensors_in(model: nn.Module) -> set[Any]:
    """Identify the tensors of a model, and the modules that hold them.

    Under FSDP2, a module alternates between gathered and sharded tensors.
    """
    found: set[Any] = set()
    for module in model.modules():
        held = *parameters_of(module).values(), *buffers_of(module).values()
        tensors = [tensor for tensor in held if tensor is not None]
        found.update([id(module)] if tensors else (), map(identity, tensors))
    return found


def _exchange(seen: list[Shown | None], next_: list[Shown | None]) -> None:
    """Put averages into their models in place of those that are in sight."""
    old = [one for one in seen if one is not None and one not in next_]
    new = [one for one in next_ if one is not None and one not in seen]
    for one in old:
        one.swap_out()
    try:
        for one in new:
            one.swap_in()
    except BaseException:
        for one in new:
            one.swap_out()
        for one in old:
            one.swap_in()
        raise
