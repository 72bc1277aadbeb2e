"""Decays by a span of time against their formulas, and what they average."""

import math

import pytest
import torch

from switch_ema import EMA, fraction, half_life, power
from switch_ema.averaging.offline.profiles import power_profile
from switch_ema.averaging.schedules.windows import gamma_to_sigma_rel
from tests.averaging.helpers import move, scalar_model, shadow

approx = pytest.approx


@pytest.mark.parametrize(
    ("schedule", "values"),
    [
        (half_life("500it"), {0: 2 ** (-1 / 500), 999: 2 ** (-1 / 500)}),
        (half_life(n_steps=500), {3: 2 ** (-1 / 500)}),
        # d = 2^(-1 / (phi t)), as torchtitan has it
        (fraction(0.05), {0: 2**-20, 19: 0.5, 999: 2 ** (-1 / 50)}),
        (fraction(0.5), {0: 0.25, 1: 0.5}),
        # gamma = 0 is the mean of all steps: 1 - 1/t
        (power(math.sqrt(1 / 12)), {0: 0, 1: 1 / 2, 3: 3 / 4}),
        (power(0.05), {999: (1 - 1 / 1000) ** (16.97 + 1)}),
    ],
)
def test_values(schedule, values):
    for n, value in values.items():
        assert schedule(n) == approx(value, abs=1e-5)


def test_a_half_life_that_is_a_number_is_in_steps():
    assert half_life(100)(0) == half_life("100it")(0) == half_life(n_steps=100)(0)


def test_a_half_life_halves_the_initial_weights_share():
    model = scalar_model(1.0)
    ema = EMA(model, decay=half_life("20it"))
    move(model, 0.0)
    for _ in range(20):
        ema.update()
    assert shadow(ema) == approx(0.5, abs=1e-9)


@pytest.mark.parametrize("spelled", ["0.1ep", "1e-1 ep"])
def test_half_life_in_epochs_learns_the_length(spelled):
    assert half_life(spelled) == half_life(n_epochs=0.1)
    ema = EMA(scalar_model(), decay=half_life(spelled))
    first = []
    for _ in range(50):
        ema.update()
        first.append(ema.current_decay)
    assert first == sorted(first)  # it warms up, with the steps so far as the epoch
    ema.end_epoch()
    ema.update()
    assert ema.current_decay == approx(2 ** (-1 / 5))
    assert first[-1] == approx(2 ** (-1 / 5))  # without a jump


def test_half_life_can_be_told_the_length():
    ema = EMA(scalar_model(), decay=half_life("0.1ep"), steps_per_epoch=50)
    ema.update()
    assert ema.current_decay == approx(2 ** (-1 / 5))


@pytest.mark.parametrize("bad", ["500", "it", "0.1 epochs", "-1it", "0ep", "1..2it"])
def test_half_lives_that_cannot_be_read(bad):
    with pytest.raises(ValueError, match="half_life"):
        half_life(bad)


def test_half_life_takes_one_argument():
    for arguments in ({}, {"n_epochs": 1, "n_steps": 2}):
        with pytest.raises(ValueError, match="exactly one"):
            half_life(**arguments)


@pytest.mark.parametrize("unit", ["samples", "tokens"])
def test_a_half_life_in_samples_needs_no_new_decay_for_another_batch_size(unit):
    """Batches twice as large: half the steps, and the same average of a drift."""
    shadows = []
    for size in (50, 100):
        model = scalar_model()
        decay = half_life(f"2k {unit}", samples_per_step=size)
        assert decay(0) == approx(2 ** (-size / 2000), abs=1e-15)
        ema = EMA(model, decay=decay)
        for seen in range(size, 20_001, size):
            move(model, float(seen))
            ema.update()
        shadows.append(shadow(ema))
    assert shadows[0] == approx(shadows[1], rel=0.005)


def test_the_batch_size_may_change_within_a_run():
    growing = half_life("1M samples", samples_per_step=lambda n: 100 * (n + 1))
    assert growing(0) == approx(2 ** (-100 / 1e6), abs=1e-15)
    assert growing(9) == approx(2 ** (-1000 / 1e6), abs=1e-15)
    broken = half_life("1M samples", samples_per_step=lambda n: 0)
    with pytest.raises(ValueError, match="samples_per_step at step 3 must be"):
        broken(3)


def test_samples_need_their_number_per_step_and_steps_do_not_take_it():
    with pytest.raises(ValueError, match="in tokens needs samples_per_step"):
        half_life("2B tokens")
    with pytest.raises(ValueError, match="only with a span in samples"):
        half_life("500it", samples_per_step=32)
    with pytest.raises(ValueError, match="samples_per_step must be a number above 0"):
        half_life("1k samples", samples_per_step=0)


def test_power_has_the_profile_of_the_post_hoc_average():
    """Each past step's share, from a weight that is 1 at that step alone."""
    steps = torch.arange(1, 31, dtype=torch.float64)
    expected = power_profile(0.1)(steps, 30)
    for chosen in (1, 10, 30):
        model = scalar_model()
        ema = EMA(model, decay=power(0.1))
        for step in range(1, 31):
            move(model, float(step == chosen))
            ema.update()
        assert shadow(ema) == approx(expected[chosen - 1].item(), abs=1e-12)


def test_a_fraction_has_nearly_the_profile_that_its_documentation_names():
    share = 0.05
    assert gamma_to_sigma_rel(math.log(2) / share - 1) == approx(0.063, abs=0.0005)
    exponent = math.log(2) / share
    for n in (99, 999, 9999):
        assert fraction(share)(n) == approx((1 - 1 / (n + 1)) ** exponent, abs=1e-3)


@pytest.mark.parametrize("bad", [0, 1, -0.1, "x", None])
def test_fractions_out_of_range_are_refused(bad):
    with pytest.raises(ValueError, match="fraction must be"):
        fraction(bad)
