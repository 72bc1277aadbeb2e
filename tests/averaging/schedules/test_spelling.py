"""What a text stands for as a decay."""

import pytest

from switch_ema import (
    EMA,
    constant,
    cosine,
    count_warmup,
    fraction,
    half_life,
    linear_warmup,
    power,
)
from switch_ema.averaging.schedules.spelling import SPELLED, as_schedule
from switch_ema.contrib import LiteralEq3
from tests.averaging.helpers import scalar_model


@pytest.mark.parametrize(
    ("text", "schedule"),
    [
        ("fraction(0.05)", fraction(0.05)),
        ("fraction()", fraction(0.1)),
        ("power(sigma_rel=0.1)", power(0.1)),
        ("half_life(0.1ep)", half_life("0.1ep")),
        ("half_life('500it')", half_life("500it")),
        (
            "half_life(5M samples, samples_per_step=256)",
            half_life("5M samples", samples_per_step=256),
        ),
        ("constant(0.99)", constant(0.99)),
        ("count_warmup(0.99)", count_warmup(0.99)),
        ("linear_warmup(0.99,steps=10, ratio=0.5)", None),
        ("cosine(0.9, steps=4)", cosine(0.9, steps=4)),
    ],
)
def test_a_text_calls_a_schedule_by_name(text, schedule):
    expected = schedule or linear_warmup(0.99, steps=10, ratio=0.5)
    assert as_schedule(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "constant(0.99)",
        "count_warmup(0.999)",
        "power_warmup(0.9999, power=0.75, inv_gamma=2)",
        "linear_warmup(0.99, steps=10, ratio=0.5)",
        "exponential_warmup(0.99, steps=10, ratio=0.5)",
        "constant_warmup(0.99, steps=10, ratio=0.5)",
        "cosine(0.9, steps=4, final=1)",
        "half_life(500it)",
        "half_life(0.1ep)",
        "half_life(5000000 samples, samples_per_step=256)",
        "fraction(0.05)",
        "power(0.1)",
    ],
)
def test_the_text_of_a_schedule_is_the_call_that_makes_it(text):
    assert repr(as_schedule(text)) == text
    assert text.split("(")[0] in SPELLED


@pytest.mark.parametrize("bad", ["car", "banana(0.5)", "0.9", "fraction(0.05", ""])
def test_other_texts_are_refused_with_the_allowed_ones(bad):
    with pytest.raises(
        ValueError, match=r"decay must be in .* a string must be 'auto' or"
    ) as e:
        EMA(scalar_model(), decay=bad)
    assert all(name in str(e.value) for name in SPELLED)


@pytest.mark.parametrize("bad", ["fraction(1,2,3)", "cosine(0.9)", "power(width=1)"])
def test_wrong_arguments_are_refused(bad):
    with pytest.raises(ValueError, match="decay"):
        as_schedule(bad)


def test_auto_is_a_fraction_for_an_ema_and_refused_where_it_means_nothing():
    ema = EMA(scalar_model(), decay="auto")
    ema.update()
    ema.update()
    assert ema.current_decay == fraction(0.1)(1)
    with pytest.raises(ValueError, match="decay='auto' is for EMA"):
        LiteralEq3(scalar_model(), decay="auto")
