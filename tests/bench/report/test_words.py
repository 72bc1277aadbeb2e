"""Sentences that do not contradict each other."""

from dataclasses import replace

import pytest

from switch_ema.bench.report.words import verdicts
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
