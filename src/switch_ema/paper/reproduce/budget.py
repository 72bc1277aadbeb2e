"""Selects rows and seeds that fit into a time budget."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from switch_ema.bench.stats.paired import FEWEST

_MORE_SEEDS = (5, 8, 16, 32)
"""Target number of seeds once every row has its first ones."""


@dataclass(frozen=True, kw_only=True)
class Offer:
    """A row that could be trained, with its cost."""

    part: str
    """Its table or figure."""
    row: str
    start: float
    """Seconds independent of the number of seeds."""
    seed: float
    """Seconds per seed, for all methods of the row."""
    fixed_seeds: int | None = None
    """Fixed number of seeds, if any."""
    is_first: bool = False
    """Whether it precedes cheaper rows of its part, because a figure shows it or
    other rows are compared with it."""

    def seconds(self, seeds: int) -> float:
        """Return the cost with a number of seeds."""
        return self.start + seeds * self.seed


@dataclass(frozen=True, kw_only=True)
class ChosenRow:
    """A row to train."""

    offer: Offer
    seeds: int

    @property
    def seconds(self) -> float:
        """Expected seconds."""
        return self.offer.seconds(self.seeds)


def choose_rows(offers: Sequence[Offer], budget: float) -> list[ChosenRow]:
    """Choose rows and seeds that fit into a budget, most important first.

    1. One row of every part, preferably one that a figure shows or other rows are
       compared with, otherwise the cheapest, with enough seeds for a verdict. If these
       do not fit, two seeds each; if still not, without the most expensive rows.
    2. Further rows, taking turns between parts, cheapest first.
    3. More seeds for all chosen rows, one round at a time.

    Args:
        offers: the candidates, in the order of the parts.
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
    """Start with one row of each part, or of as many parts as fit."""
    for seeds in (FEWEST, 2):
        chosen = [ChosenRow(offer=o, seeds=o.fixed_seeds or seeds) for o in offers]
        if sum(one.seconds for one in chosen) <= budget:
            return chosen
    while chosen and sum(one.seconds for one in chosen) > budget:
        chosen.remove(max(chosen, key=lambda one: one.seconds))
    return chosen
