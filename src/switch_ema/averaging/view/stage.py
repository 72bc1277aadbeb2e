"""Whose weights are in the model: the live ones, or the average of some averager."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from weakref import WeakKeyDictionary

from torch import nn

from switch_ema.averaging.shadow.shadow import Shadow
from switch_ema.averaging.view.swap import insist

_OPEN: WeakKeyDictionary[nn.Module, list[Shadow | None]] = WeakKeyDictionary()
"""Per model, what its open blocks show, the innermost last; None: the live weights."""


def is_open(model: nn.Module) -> bool:
    """Whether a block is open, so that the model may not hold the live weights."""
    return bool(_OPEN.get(model))


@contextmanager
def showing(model: nn.Module, shadow: Shadow | None) -> Iterator[None]:
    """Hold ``shadow``, or the live weights for None, in the model during a block.

    The innermost block decides, also between several averagers of one model: at any
    time at most one shadow is exchanged with the live weights, so that a checkpoint
    taken inside a block never mixes the two.
    """
    blocks = _OPEN.setdefault(model, [])
    below = blocks[-1] if blocks else None
    blocks.append(shadow)
    try:
        _exchange(below, shadow)
        yield
    finally:
        try:
            insist(partial(_exchange, shadow, below))
        finally:
            blocks.pop()


def _exchange(old: Shadow | None, new: Shadow | None) -> None:
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
