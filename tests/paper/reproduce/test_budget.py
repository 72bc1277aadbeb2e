"""Rows and seeds that fit into a given time."""

from switch_ema.bench.execute.options import RunOptions
from switch_ema.paper.reproduce.budget import Offer, choose_rows
from switch_ema.paper.reproduce.full_run import make_offers
from switch_ema.paper.reproduce.presets import RowSettings


def offer(part, row, seed, **more):
    return Offer(part=part, row=row, start=1.0, seed=seed, **more)


OFFERS = [
    offer("a", "slow", 100),
    offer("a", "quick", 10),
    offer("b", "only", 20),
    offer("c", "wide", 1, fixed_seeds=24),
]


def chosen(budget):
    found = choose_rows(OFFERS, budget)
    assert sum(one.seconds for one in found) <= budget
    return {f"{one.offer.part} {one.offer.row}": one.seeds for one in found}


def test_every_part_gets_its_cheapest_row_first():
    assert chosen(31 + 61 + 25) == {"a quick": 3, "b only": 3, "c wide": 24}


def test_too_little_time_costs_seeds_and_then_the_most_expensive_parts():
    assert chosen(90) == {"a quick": 2, "b only": 2, "c wide": 24}
    assert chosen(60) == {"a quick": 3, "c wide": 24}
    assert chosen(0.5) == {}


def test_more_time_buys_rows_and_then_seeds():
    assert chosen(117 + 301) == {"a quick": 3, "b only": 3, "c wide": 24, "a slow": 3}
    seeds = chosen(117 + 301 + 20 + 40)
    assert seeds == {"a quick": 5, "b only": 5, "c wide": 24, "a slow": 3}


def test_a_row_that_a_figure_shows_comes_before_the_cheapest():
    shown = offer("a", "slow", 100, is_first=True)
    found = choose_rows([shown, *OFFERS[1:]], 117 + 301 - 31)
    assert [one.offer.row for one in found] == ["slow", "only", "wide"]


def test_table_1_begins_with_the_row_that_its_others_are_compared_with():
    options = RunOptions(executor="inline")
    offers = make_offers(RowSettings(), speed=1.0, options=options)
    ours = [offer for offer in offers if offer.part == "table-1"]
    two = sum(o.seconds(o.fixed_seeds or 3) for o in ours if o.is_first)
    chosen = [one.offer.row for one in choose_rows(ours, two)]
    assert chosen == ["digits-sgd", "noisy-digits-sgd"]
