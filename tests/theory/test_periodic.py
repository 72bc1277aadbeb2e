"""Exact moments: fast against dense, against unrolled sums, against chains."""

import numpy as np
import pytest

from switch_ema.theory.periodic import (
    contraction,
    expected_losses,
    mode_losses,
    moments,
    steady_losses,
    steady_state,
)
from switch_ema.theory.quadratic import NoisyQuadratic, SwitchSettings, stationary
from switch_ema.theory.reference import (
    dense_moments,
    dense_steady_state,
    final,
)
from switch_ema.theory.simulation import (
    constant_rates,
    cosine_rates,
    gradient_noise,
    last,
    mean_and_error,
    step_rates,
    switch_ema_steps,
)

from .test_quadratic import random_model

START = np.array([1.0, -2.0, 3.0])
RECIPES = [
    SwitchSettings(decay=0.9),
    SwitchSettings(decay=0.9, every=1),
    SwitchSettings(decay=0.95, every=7),
    SwitchSettings(decay=0.9, every=5, momentum=0.8),
    SwitchSettings(decay=0.99, every=4, momentum=0.5, reset_momentum=True),
    SwitchSettings(decay=0.0, every=3),
]
RATES = [
    constant_rates(0.1, 33),
    cosine_rates(0.2, 33),
    step_rates(0.2, 33, [10, 20]),
]


def commuting_model():
    model = random_model()
    return NoisyQuadratic(model.curvature, model.curvature @ model.curvature)


@pytest.mark.parametrize("rates", RATES, ids=["constant", "cosine", "step"])
@pytest.mark.parametrize("recipe", RECIPES, ids=str)
def test_fast_agrees_with_dense(recipe, rates):
    model = commuting_model()
    fast = moments(model, recipe, rates, START)
    dense = list(dense_moments(model, recipe, rates, START))
    assert np.allclose(fast.mean, dense[-1].mean, rtol=0, atol=1e-10)
    assert np.allclose(fast.covariance, dense[-1].covariance, rtol=0, atol=1e-10)


@pytest.mark.parametrize("recipe", RECIPES, ids=str)
def test_losses_are_exact_also_without_a_common_basis(recipe):
    model, rates = random_model(), RATES[1]
    fast = expected_losses(model, recipe, rates, START)
    dense = list(dense_moments(model, recipe, rates, START))
    live = [model.expected_loss(m.mean[0], m.live) for m in dense]
    shadow = [model.expected_loss(m.mean[2], m.shadow) for m in dense]
    assert np.allclose(fast.live, live, rtol=1e-10, atol=1e-10)
    assert np.allclose(fast.shadow, shadow, rtol=1e-10, atol=1e-10)


def test_moments_fall_back_to_dense_without_a_common_basis():
    model, recipe = random_model(), RECIPES[3]
    found = moments(model, recipe, RATES[1], START)
    dense = final(dense_moments(model, recipe, RATES[1], START))
    assert np.allclose(found.covariance, dense.covariance, rtol=0, atol=1e-10)


def impulse(curvature, recipe, rates, live, kicks):
    """Push one scalar through the rules; ``kicks`` is the noise of each step."""
    shadow, velocity = live, 0.0
    for step, (rate, kick) in enumerate(zip(rates, kicks, strict=True), start=1):
        velocity = recipe.momentum * velocity + curvature * live + kick
        live -= rate * velocity
        shadow = recipe.decay * shadow + (1 - recipe.decay) * live
        if recipe.every and step % recipe.every == 0:
            live = shadow
            velocity = 0.0 if recipe.reset_momentum else velocity
    return np.array([live, velocity, shadow])


@pytest.mark.parametrize("rates", RATES, ids=["constant", "cosine", "step"])
@pytest.mark.parametrize("recipe", RECIPES, ids=str)
def test_agrees_with_the_unrolled_sum_of_noise(recipe, rates):
    """Each step's noise is sent through on its own; their squares add up."""
    curvatures, variances, start = [0.5, 3.0], [0.7, 2.0], [2.0, -1.0]
    model = NoisyQuadratic.diagonal(curvatures, variances)
    found = moments(model, recipe, rates, start)
    for i in range(2):
        args = curvatures[i], recipe, rates
        mean = impulse(*args, start[i], np.zeros(len(rates)))
        answers = [impulse(*args, 0.0, kick) for kick in np.eye(len(rates))]
        expected = variances[i] * sum(np.outer(a, a) for a in answers)
        assert np.allclose(found.mean[:, i], mean, rtol=0, atol=1e-10)
        covariance = found.covariance[:, :, i, i]
        assert np.allclose(covariance, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("recipe", RECIPES, ids=str)
@pytest.mark.parametrize("phase", [0, 1])
def test_steady_state_is_where_the_recursion_goes(recipe, phase):
    model = commuting_model()
    steps = 1500 * (recipe.every or 1) + phase
    factor = contraction(model, recipe, 0.1) ** (2 * steps)
    assert factor < 1e-13
    settled = moments(model, recipe, constant_rates(0.1, steps), START)
    found = steady_state(model, recipe, 0.1, phase)
    dense = dense_steady_state(model, recipe, 0.1, phase)
    assert np.allclose(found.covariance, dense.covariance, rtol=0, atol=1e-10)
    assert np.allclose(found.covariance, settled.covariance, rtol=0, atol=1e-10)


def test_without_switches_it_is_the_papers_closed_form():
    model = random_model()
    found = steady_state(model, SwitchSettings(decay=0.9, momentum=0.3), 0.1)
    closed = stationary(model, 0.1, 0.9, momentum=0.3)
    assert np.allclose(found.live, closed.sgd, atol=1e-12)
    assert np.allclose(found.shadow, closed.ema, atol=1e-12)


def test_a_switch_after_every_step_is_the_proofs_sema():
    model = random_model()
    found = steady_state(model, SwitchSettings(decay=0.9, every=1), 0.1)
    assert np.allclose(found.shadow, stationary(model, 0.1, 0.9).sema, atol=1e-12)


@pytest.mark.parametrize("every", [1, 3, 10, 40])
@pytest.mark.parametrize(("h", "sign"), [(0.3, -1), (1.0, 0), (1.6, 1)])
def test_switching_helps_the_steady_state_below_h_1_and_hurts_above(every, h, sign):
    model = NoisyQuadratic.diagonal([h])
    ema = steady_losses(model, SwitchSettings(decay=0.9), 1.0).shadow[-1]
    switched = steady_losses(model, SwitchSettings(decay=0.9, every=every), 1.0).shadow[
        -1
    ]
    difference = switched / ema - 1
    assert abs(difference) < 1e-12 if sign == 0 else difference * sign > 0


def test_steady_losses_go_once_around():
    model, recipe = commuting_model(), RECIPES[2]
    found = steady_losses(model, recipe, 0.1)
    assert len(found.live) == recipe.every + 1
    assert found.live[0] == pytest.approx(found.shadow[0], rel=1e-12)
    assert found.shadow[-1] == pytest.approx(found.shadow[0], rel=1e-9)
    middle = steady_state(model, recipe, 0.1, phase=3)
    expected = model.expected_loss(np.zeros(3), middle.live)
    assert found.live[3] == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("recipe", RECIPES[2:5], ids=str)
def test_chains_agree_with_the_moments(recipe):
    model, rates = random_model(), RATES[1]
    exact = moments(model, recipe, rates, START)
    noise = gradient_noise(model, 6000, 3)
    state = last(switch_ema_steps(model, recipe, rates, START, noise))
    samples = np.stack([state.live, state.velocity, state.shadow])
    means, errors = mean_and_error(samples.swapaxes(0, 1))
    assert_within(exact.mean, means, errors)
    centred = samples - exact.mean[:, None, :]
    products = np.einsum("aci,bcj->cabij", centred, centred)
    assert_within(exact.covariance, *mean_and_error(products))


def assert_within(exact, means, errors):
    known = errors > 0  # a velocity that was just reset has no spread
    assert np.allclose(exact[~known], means[~known], rtol=0, atol=1e-12)
    assert np.abs((means - exact)[known] / errors[known]).max() < 4


def test_mode_losses_add_up():
    model = random_model()
    parts = mode_losses(model, RECIPES[3], RATES[0], START)
    whole = expected_losses(model, RECIPES[3], RATES[0], START)
    assert np.allclose(parts.live.sum(1), whole.live)
    assert whole.live[0] == pytest.approx(float(model.loss(START)))


def test_bad_input():
    model = NoisyQuadratic.diagonal([1.0])
    with pytest.raises(ValueError, match="start must have the shape"):
        moments(model, RECIPES[0], RATES[0], [1.0, 2.0])
    with pytest.raises(ValueError, match="multiple of the interval 5"):
        steady_state(model, RECIPES[3], [0.1] * 6)
    with pytest.raises(ValueError, match="phase must be in"):
        steady_state(model, RECIPES[3], 0.1, phase=6)
    with pytest.raises(ValueError, match="too large"):
        steady_state(model, RECIPES[0], 2.5)
