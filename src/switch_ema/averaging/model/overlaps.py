"""Tensors that share memory without being one weight."""

from dataclasses import replace

from switch_ema.averaging.kernels.torch_ops import is_plain
from switch_ema.averaging.model.slots import Slot


def without_views(slots: list[Slot]) -> list[Slot]:
    """Leave out tensors that lie within the memory of another one.

    A decoder that is its encoder transposed, for instance: what is done to the one is
    done to the other, and must not be done twice.

    Raises:
        ValueError: two tensors share a part of their memory, and neither is the whole.
    """
    plain = [slot for slot in slots if is_plain(slot.local)]
    views: set[int] = set()
    wholes: set[int] = set()
    whole: Slot | None = None
    # Of those that begin at the same place, the longest first.
    for slot in sorted(plain, key=lambda s: (_begin(s), -s.local.nbytes)):
        if whole is None or _begin(slot) >= _end(whole):
            whole = slot
        elif _end(slot) > _end(whole):
            raise ValueError(
                f"{whole.name} and {slot.name} share a part of their memory, so they "
                "cannot be averaged apart; exclude one of them."
            )
        else:
            views.add(id(slot))
            wholes.add(id(whole))
    return [
        replace(slot, is_shared=True) if id(slot) in wholes else slot
        for slot in slots
        if id(slot) not in views
    ]


def _begin(slot: Slot) -> int:
    return slot.local.data_ptr()


def _end(slot: Slot) -> int:
    return slot.local.data_ptr() + slot.local.nbytes
