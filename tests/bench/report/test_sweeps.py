"""Settings side by side: what their tables and sentences say."""

from dataclasses import replace
from itertools import chain

import pytest

from switch_ema.bench.report.sweeps import sweep_sentences, sweep_sheets
from switch_ema.bench.stats.summary import Sweep
from tests.bench.report.synthetic import make_task

GAINS = {"plain": 0.0, "ema": 1.0, "switch-ema": 3.0}


def sweep(**more):
    """One task at two settings, which differ in their names only."""
    task = make_task("digits", GAINS)
    titles = ("untuned", "tuned") if more.get("is_tuned") else ("lr = 1", "lr = 2")
    points = [replace(task, point=title) for title in titles]
    return Sweep("digits", points, **more)


@pytest.mark.parametrize("is_tuned", [True, False])
def test_the_number_after_a_mean_is_the_standard_deviation(is_tuned):
    """It was half the width of the interval."""
    own = sweep(is_tuned=is_tuned)
    last = own.points[0].results["accuracy"][0].last
    sheet = sweep_sheets(own)[0]
    assert "mean ± standard deviation" in " ".join(sheet.caption.split())
    assert f"{last.mean:.2f} ± {last.sd:.2f}" in [*chain(*sheet.rows)]


def test_tuning_that_ends_at_an_end_of_its_values_says_so():
    places = {"plain": "smallest", "ema": "as given", "switch-ema": "largest"}
    own = sweep(is_tuned=True, places={"learning rate": places})
    told = [text for _, text in sweep_sentences(own)][-3:]
    assert told == [
        "Tuning kept the given learning rate of ema.",
        "For plain tuning chose the smallest learning rate it tried; an even smaller "
        "one may be better.",
        "For switch-ema tuning chose the largest learning rate it tried; an even "
        "larger one may be better.",
    ]


def test_a_gain_that_tuning_leaves_open_is_undecided():
    own = sweep(is_tuned=True)
    noisy = make_task("digits", {**GAINS, "switch-ema": 0.3}, noise=3.0)
    points = [own.points[0], replace(noisy, point="tuned")]
    told = dict(sweep_sentences(replace(own, points=points)))
    words = "Undecided whether switch-ema gains if every method is tuned: "
    assert any(text.startswith(words) for text in told.values())
