"""Sentences that do not contradict each other."""

import re
from dataclasses import replace

import pytest

from switch_ema.bench.report.words import best_sentence, verdicts
from switch_ema.bench.stats.paired import compare
from tests.bench.report.synthetic import DIGITS, make_task


@pytest.mark.parametrize(
    ("baseline", "direct"), [("plain", 1), ("ema", 0), ("switch-ema", 0)]
)
def test_nobody_is_compared_with_the_baseline_twice(baseline: str, direct: int) -> None:
    task = make_task("digits", DIGITS)
    curves = task.curves["accuracy"]
    results = compare(curves, higher_is_better=True, baseline=baseline)
    task = replace(task, results={**task.results, "accuracy": results})
    told = [text for _, text in verdicts(task)]
    assert len(told) == len(DIGITS) - 1 + direct
    assert sum(text.startswith("Head to head") for text in told) == direct


def judged(**gains: float):
    return make_task("digits", {"plain": 0.0, **gains}, noise=0.1)


def test_the_best_of_those_that_help_is_named_with_interval_and_n() -> None:
    task = judged(ema=1.0, swa=3.0, lawa=-4.0)
    difference = next(
        r.difference for r in task.results["accuracy"] if r.method == "swa"
    )
    told = best_sentence(task)
    assert told.startswith(f"swa is best: {difference.mean:+.2f} percentage points")
    assert f"CI {difference.low:.2f} to {difference.high:.2f}, n = 8) over" in told
    assert told.endswith("over plain; ema helps; lawa hurts.")


def test_where_nothing_helps_the_baseline_is_named() -> None:
    told = best_sentence(judged(ema=0.0, swa=-2.0))
    assert re.match(r"Nothing beats plain \(\d+\.\d+ %, n = 8\): swa hurts; no", told)


def test_the_baseline_alone_is_nothing_to_compare() -> None:
    assert best_sentence(judged()) == (
        "There is nothing to compare: only the baseline was trained."
    )


def test_too_few_seeds_are_no_reason_to_praise_anybody() -> None:
    task = judged(ema=5.0)
    curves = {
        method: {seed: values for seed, values in seeds.items() if seed < 2}
        for method, seeds in task.curves["accuracy"].items()
    }
    results = compare(curves, higher_is_better=True, baseline="plain")
    task = replace(task, results={**task.results, "accuracy": results})
    assert best_sentence(task) == "Too few seeds to judge ema."
