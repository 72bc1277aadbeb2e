"""Schedules against their formulas."""

import math

import pytest

from switch_ema import (
    EMA,
    SwitchEMA,
    constant,
    constant_warmup,
    count_warmup,
    exponential_warmup,
    linear_warmup,
    power_warmup,
)
from switch_ema.averaging.schedules.decay import cosine
from tests.averaging.helpers import move, scalar_model, shadow

approx = pytest.approx


def test_a_number_is_warmed_up_by_count_and_constant_is_that_constant_exactly():
    model = scalar_model()
    warm, fixed = EMA(model, decay=0.9973), EMA(model, decay=constant(0.9973))
    assert warm.current_decay == 0.1
    assert fixed.current_decay == 0.9973
    for _ in range(50):
        warm.update()
        fixed.update()
    assert warm.current_decay == count_warmup(0.9973)(49) == 50 / 59
    assert fixed.current_decay == 0.9973


def test_a_schedule_may_end_at_one_which_leaves_the_average_as_it_is():
    model = scalar_model()
    ema = EMA(model, decay=lambda n: 1.0)
    move(model, 5.0)
    ema.update()
    assert shadow(ema) == 0.0
    assert cosine(0.9, steps=10)(10) == 1.0
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        EMA(model, decay=lambda n: 1.1).update()


@pytest.mark.parametrize(
    ("schedule", "values"),
    [
        (constant(0.9), {0: 0.9, 10**6: 0.9}),
        (count_warmup(0.99), {0: 0.1, 1: 2 / 11, 90: 0.91, 890: 0.99, 10**6: 0.99}),
        (power_warmup(0.999), {0: 0.0, 7: 1 - 8 ** (-2 / 3), 10**6: 0.999}),
        (power_warmup(0.9, power=1, inv_gamma=2), {2: 0.5, 100: 0.9}),
        # the paper's code: decay * (1 - (1 - n/N) * (1 - ratio)) up to n = N
        (linear_warmup(0.99, steps=10), {0: 0.891, 5: 0.9405, 10: 0.99, 11: 0.99}),
        (
            exponential_warmup(0.99, steps=10, ratio=0.5),
            {0: 0.495, 5: 0.99 * 0.5**0.5, 10: 0.99, 11: 0.99},
        ),
        (constant_warmup(0.99, steps=10), {0: 0.891, 10: 0.891, 11: 0.99}),
        # BYOL: 1 - (1 - d) * (cos(pi * n / N) + 1) / 2
        (cosine(0.9, steps=4), {0: 0.9, 1: 1 - 0.05 * (1 + 0.5**0.5), 2: 0.95, 9: 1}),
        (cosine(0.998, steps=2, final=0.999), {0: 0.998, 1: 0.9985, 2: 0.999}),
    ],
)
def test_values(schedule, values):
    for n, value in values.items():
        assert schedule(n) == approx(value, abs=1e-12)


def test_a_callable_gets_the_index_of_the_step():
    seen = []
    ema = EMA(scalar_model(), decay=lambda n: seen.append(n) or 0.5)
    for _ in range(3):
        ema.update()
    assert sorted(set(seen)) == [0, 1, 2]


@pytest.mark.parametrize("bad", [-0.1, 1.0, 1.5, math.nan, "0.9", None, True])
def test_decays_out_of_range_are_refused(bad):
    with pytest.raises(ValueError, match=r"decay must be in \[0, 1\), got"):
        SwitchEMA(scalar_model(), decay=bad)


def test_a_callable_out_of_range_is_refused_when_it_happens():
    ema = EMA(scalar_model(), decay=lambda n: 1.5 if n == 1 else 0.9)
    ema.update()
    with pytest.raises(ValueError, match=r"decay at step 1 must be in \[0, 1\]"):
        ema.update()


def test_a_decay_that_looks_inverted_warns():
    with pytest.warns(UserWarning, match=r"Did you mean 0\.999\?"):
        EMA(scalar_model(), decay=0.001)


def test_a_decay_of_zero_is_not_taken_for_one():
    with pytest.warns(UserWarning, match="0 averages nothing") as found:
        EMA(scalar_model(), decay=0)
    assert "Did you mean" not in str(found[0].message)


@pytest.mark.parametrize("options", [{"steps": 0}, {"steps": 5, "ratio": 0}])
def test_warmups_check_their_arguments(options):
    with pytest.raises(ValueError, match="warm-up"):
        linear_warmup(0.9, **options)


def test_a_cosine_that_ends_at_one_stands_still_and_is_accepted():
    model = scalar_model(1.0)
    ema = EMA(model, decay=cosine(0.5, steps=2))
    for value in (0.0, 0.0, 7.0, 7.0):
        move(model, value)
        ema.update()
    # 1 -> 0.5 (d = 0.5) -> 0.375 (d = 0.75) -> it stays
    assert shadow(ema) == approx(0.375, abs=1e-12)


@pytest.mark.parametrize("options", [{"steps": 0}, {"steps": 5, "final": 1.1}])
def test_cosines_check_their_arguments(options):
    with pytest.raises(ValueError, match=next(reversed(options))):
        cosine(0.9, **options)
