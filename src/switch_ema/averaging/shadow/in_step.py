"""What an optimizer may average within its own step."""

import operator

from torch import Tensor

from switch_ema.averaging.shadow.groups import Group
from switch_ema.averaging.step.blocks import Shadows


class InStep:
    """Finds parameters with their shadows, and remembers them while they stay."""

    def __init__(self) -> None:
        self._seen: list[list[Tensor] | None] = []
        self._pairs: Shadows = {}

    def pairs(self, groups: list[Group]) -> Shadows:
        """Return parameters with their shadows where both lie in memory alike.

        Empty if the model is no longer what it was, which an update adapts to; the
        same object as before if nothing has changed.
        """
        suitable = list(filter(_is_suitable, groups))
        lives = [group.live() for group in suitable]
        known, self._seen = self._seen, lives
        if len(known) == len(lives) and all(map(operator.is_, known, lives)):
            return self._pairs
        self._pairs = {}
        for group, found in zip(suitable, lives, strict=True):
            if found is None:
                self._pairs = {}
                break
            pairs = zip(found, group.shadow, strict=True)
            self._pairs |= {id(live): (live, shadow) for live, shadow in pairs}
        return self._pairs

    @staticmethod
    def left(groups: list[Group]) -> list[Group]:
        """Return the groups that an update has to average itself."""
        return [group for group in groups if not _is_suitable(group)]


def _is_suitable(group: Group) -> bool:
    """Whether an optimizer may average it: parameters that lie as their shadow does.

    Not buffers, which no optimizer updates, not flat ones, of which only the first and
    the last are looked at, and not what another parameter moves as well.
    """
    on_accelerator = group.kind == "same" and not group.shadow[0].is_cpu
    fits = group.kind == "dense" or on_accelerator
    return fits and group.stays and not group.is_shared
