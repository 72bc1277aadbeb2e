"""A recipe says at once what is wrong with it, and needs no torch to do so."""

import math
import subprocess
import sys

import pytest

from switch_ema.bench.errors import UsageError
from switch_ema.bench.plan.cells import make_plan
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.task import Metric, Recipe


@pytest.mark.parametrize("clip", [-1.0, 0.0, math.nan, math.inf])
def test_clip_must_be_above_zero_and_finite(clip):
    config = CompareConfig(tasks=("digits",), clip=clip)
    with pytest.raises(UsageError, match="clip must be a number above 0, got"):
        make_plan(config)


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("epochs", "3", "a whole number of at least 1, got '3'"),
        ("epochs", 2.5, "a whole number of at least 1, got 2.5"),
        ("evaluate_every", 0, "a whole number of at least 1, got 0"),
        ("accumulate", 0, "a whole number of at least 1, got 0"),
        ("warmup_epochs", -1, r"in \[0, inf\), got -1"),
        ("layer_decay", 0, "a number above 0, got 0"),
        ("schedule", 3, "text, got 3"),
        ("deploy", None, "text, got None"),
        ("precision", None, "text, got None"),
        ("methods", ("ema",), r"a dict, got \('ema',\)"),
    ],
)
def test_values_of_another_kind_are_refused(name, value, wanted):
    with pytest.raises(UsageError, match=f"^{name} must be {wanted}.$"):
        Recipe(**{name: value})


def test_decimals_of_a_metric_are_a_count():
    assert Metric(name="error", higher_is_better=False, decimals=0).decimals == 0
    message = "metric error: decimals must be a whole number of at least 0, got -1"
    with pytest.raises(UsageError, match=message):
        Metric(name="error", higher_is_better=False, decimals=-1)


def test_evaluations_are_counted_with_the_last():
    for epochs, every, count in ((7, 1, 7), (7, 3, 3), (6, 3, 2), (2, 5, 1)):
        recipe = Recipe(epochs=epochs, evaluate_every=every)
        assert recipe.evaluations == count
        assert sum(map(recipe.is_evaluated, range(1, epochs + 1))) == count


def test_recipes_and_the_papers_tables_need_no_torch():
    code = (
        "import sys, switch_ema.bench.recipe, switch_ema.paper;"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
