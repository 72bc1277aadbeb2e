"""A recipe says at once what is wrong with it."""

import math

import pytest

from switch_ema.bench.errors import UsageError
from switch_ema.bench.plan.cells import make_plan
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.task import Recipe


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
        ("precision", None, "text, got None"),
        ("methods", ("ema",), r"a dict, got \('ema',\)"),
    ],
)
def test_values_of_another_kind_are_refused(name, value, wanted):
    with pytest.raises(UsageError, match=f"^{name} must be {wanted}.$"):
        Recipe(**{name: value})
