"""Decides which steps of several optimizers make one training step."""

from collections.abc import Iterable, Sequence
from typing import Any, Literal, Union

from torch.optim import Optimizer

from switch_ema._checks import check_choice
from switch_ema.averaging import _torch

Count = Union[Literal["round", "any", "all"], int, Optimizer]
"""Which steps count with several optimizers."""

Counting = Union[Literal["round", "any", "all"], int]
"""The same, with an optimizer replaced by its number, which can be stored."""


def as_counting(count: Count, optimizers: Sequence[Optimizer]) -> Counting:
    """Check the argument ``count``; replace an optimizer by its number."""
    if isinstance(count, str):
        check_choice("count", count, ("round", "any", "all"))
        return count
    number: Any = count
    if not isinstance(count, int):
        inside = _torch.optimizer_inside(count)
        places = [i for i, one in enumerate(optimizers) if one is inside]
        if not places:
            raise ValueError(
                "count must be 'round', 'any', 'all', or one of the optimizers given "
                f"or its number, got {type(count).__name__}."
            )
        number = places[0]
    if optimizers and not (number in range(len(optimizers)) and number is not True):
        raise ValueError(
            f"count must be the number of an optimizer, from 0 to "
            f"{len(optimizers) - 1}, got {number}."
        )
    return int(number)


class Round:
    """One training iteration: which members have stepped, which are still expected.

    A round ends when every expected member has stepped. It also ends when a member is
    about to step a second time; the members that have not stepped then rest, and are
    not expected until they step again. A resting member that steps between two rounds
    belongs to the earlier one, which did not wait for it.

    Args:
        members: numbers of optimizers or parameters.
        may_rest: whether a second step ends the round.
    """

    def __init__(self, members: Iterable[int], may_rest: bool = True) -> None:
        self.members = frozenset(members)
        self._may_rest = may_rest
        self._expected = set(self.members)
        self._stepped: set[int] = set()

    @property
    def is_open(self) -> bool:
        """Whether a member has stepped since the last count."""
        return bool(self._stepped)

    @property
    def waiting_for(self) -> set[int]:
        """Members that must step before the round ends."""
        return self._expected - self._stepped

    @property
    def resting(self) -> set[int]:
        """Members that are not expected to step."""
        return set(self.members - self._expected)

    def resume(self, waiting_for: Iterable[int], resting: Iterable[int]) -> None:
        """Restore saved values; numbers that are not members are ignored."""
        self._expected = set(self.members.difference(resting) or self.members)
        waiting = self._expected.intersection(waiting_for)
        self._stepped = self._expected - waiting if waiting else set()

    def before_step(self, member: int) -> bool:
        """Return whether the round ends before a member steps."""
        if not self._may_rest or member not in self._stepped:
            return False
        self._expected = self._stepped
        self._stepped = set()
        return True

    def after_step(self, member: int) -> bool:
        """Return whether the round ends after a member has stepped."""
        if member not in self._expected:
            self._expected.add(member)
            if not self._stepped:
                return False
        self._stepped.add(member)
        if len(self._stepped) < len(self._expected):
            return False
        self._stepped.clear()
        return True

    def close(self) -> None:
        """End the round as it is; the same members stay expected."""
        self._stepped.clear()
