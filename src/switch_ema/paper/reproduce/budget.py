"""Which rows, and how many seeds of each, fit into a given time."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from switch_ema.bench.errors import UsageError
from switch_ema.bench.stats.paired import FEWEST

_MORE_SEEDS = (5, 8, 16, 32)
"""Seeds of a row once every row has the first ones."""
_UNITS = {"s": 1, "min": 60, "h": 3600}


@dataclass(frozen=True, kw_only=True)
class Offer:
    """A row that could be trained, and what that takes."""

    part: str
    """The table or figure that it belongs to."""
    row: str
    start: float
    """Seconds that do not depend on the number of seeds."""
    seed: float
    """Seconds for each seed, all methods of the row together."""
    fixed_seeds: int | None = None
    """For rows whose number of seeds is not to be chosen."""
    is_first: bool = False
    """Whether it is taken before cheaper ones of its part: a figure shows it, too, or
    the others are compared with it."""

    def seconds(self, seeds: int) -> float:
        """Return what it takes with so many seeds."""
        return self.start + seeds * self.seed


@dataclass(frozen=True, kw_only=True)
class ChosenRow:
    """A row that is going to be trained."""

    offer: Offer
    seeds: int

    @property
    def seconds(self) -> float:
        """What it is expected to take."""
        return self.offer.seconds(self.seeds)


def read_duration(text: str) -> float:
    """Read a time such as 90s, 30min or 1.5h as seconds.

    >>> read_duration("90s"), read_duration("30min"), read_duration("1.5h")
    (90.0, 1800.0, 5400.0)
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|min|h)", text.strip())
    seconds = float(found[1]) * _UNITS[found[2]] if found else 0.0
    if not seconds > 0:
        raise UsageError(f"budget must be a time such as 90s, 30min or 2h, got {text}.")
    return seconds


def choose_rows(offers: Sequence[Offer], budget: float) -> list[ChosenRow]:
    """Choose rows and seeds that fit into a time, the most important first.

    1. One row of every part, one that a figure shows or that others are compared with,
       or else the cheapest, with as many seeds as a verdict needs. If they do not fit,
       with two seeds; if they still do not, without the most expensive ones.
    2. Further rows, the parts in turn, each part's cheapest first.
    3. More seeds for all rows that have been chosen, one round after the other.

    Args:
        offers: what there is, in the order of the parts.
        budget: seconds.
    """
    parts: dict[str, list[Offer]] = {}
    for offer in offers:
        parts.setdefault(offer.part, []).append(offer)
    for rows in parts.values():
        rows.sort(key=lambda offer: (not offer.is_first, offer.seconds(FEWEST)))
    chosen = _first_rows([rows[0] for rows in parts.values()], budget)
    left = budget - sum(one.seconds for one in chosen)
    began = {one.offer.part for one in chosen}
    rest = [(turn, o) for p in began for turn, o in enumerate(parts[p]) if turn]
    for _, offer in sorted(rest, key=lambda pair: (pair[0], pair[1].seconds(FEWEST))):
        one = ChosenRow(offer=offer, seeds=offer.fixed_seeds or FEWEST)
        if one.seconds <= left:
            chosen.append(one)
            left -= one.seconds
    for seeds in (FEWEST, *_MORE_SEEDS):
        for index, one in enumerate(chosen):
            more = replace(one, seeds=max(one.seeds, seeds))
            if one.offer.fixed_seeds is None and more.seconds - one.seconds <= left:
                chosen[index] = more
                left -= more.seconds - one.seconds
    return chosen


def _first_rows(offers: Sequence[Offer], budget: float) -> list[ChosenRow]:
    """Begin with one row of each part, or of as many parts as fit."""
    for seeds in (FEWEST, 2):
        chosen = [ChosenRow(offer=o, seeds=o.fixed_seeds or seeds) for o in offers]
        if sum(one.seconds for one in chosen) <= budget:
            return chosen
    while chosen and sum(one.seconds for one in chosen) > budget:
        chosen.remove(max(chosen, key=lambda one: one.seconds))
    return chosen
