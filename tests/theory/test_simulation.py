"""The chains: steps by hand, against the product, and against the closed forms."""

from itertools import islice

import numpy as np
import pytest
import torch

from switch_ema import Steps, SwitchEMA, constant
from switch_ema.contrib import LiteralEq3
from switch_ema.theory.quadratic import NoisyQuadratic, SwitchSettings, stationary
from switch_ema.theory.simulation import (
    constant_rates,
    cosine_rates,
    gradient_noise,
    last,
    literal_steps,
    mean_and_error,
    step_rates,
    switch_ema_steps,
)

from .test_quadratic import random_model


def test_a_switch_by_hand():
    # curvature 1, rate 1/2, decay 1/2, T = 2, no noise; from 8:
    # live    8 -> 4 -> 2, then the shadow 4 -> 2
    # shadow  8 -> 6 -> 4 (switch)           -> 3
    model = NoisyQuadratic.diagonal([1.0])
    recipe = SwitchSettings(decay=0.5, every=2)
    noise = np.zeros((3, 1))
    states = list(switch_ema_steps(model, recipe, constant_rates(0.5, 3), [8.0], noise))
    assert [state.live.item() for state in states] == [4.0, 4.0, 2.0]
    assert [state.shadow.item() for state in states] == [6.0, 4.0, 3.0]


def test_equation_3_by_hand():
    # 8 -> the mean of 8 and 4 = 6 -> the full step to 3 (T = 2) -> mean of 3 and 1.5
    model = NoisyQuadratic.diagonal([1.0])
    rates, noise = constant_rates(0.5, 3), np.zeros((3, 1))
    states = literal_steps(model, 0.5, 2, rates, [8.0], noise)
    assert [state.live.item() for state in states] == [6.0, 3.0, 2.25]


def test_momentum_is_kept_or_reset():
    model, noise = NoisyQuadratic.diagonal([1.0]), np.zeros((2, 1))
    for reset, expected in ((False, 2.0), (True, 0.0)):
        recipe = SwitchSettings(decay=0.5, momentum=0.5, every=2, reset_momentum=reset)
        rates = constant_rates(1.0, 2)
        # velocity 4, live 0; velocity 0.5 * 4 + 0
        state = last(switch_ema_steps(model, recipe, rates, [4.0], noise))
        assert state.velocity.item() == expected


def torch_path(model, make, rates, start, noise, momentum):
    """Train a real module with real torch SGD and a real averager."""
    module = torch.nn.Linear(model.size, 1, bias=False, dtype=torch.float64)
    with torch.no_grad():
        module.weight.copy_(torch.as_tensor(start))
    sgd = torch.optim.SGD(module.parameters(), lr=1.0, momentum=momentum)
    averager = make(module, sgd)
    curvature = torch.as_tensor(model.curvature)
    live, shadow = [], []
    for rate, xi in zip(rates, noise, strict=True):
        weight = module.weight[0]
        loss = weight @ curvature @ weight / 2 + torch.as_tensor(xi) @ weight
        sgd.zero_grad()
        loss.backward()
        sgd.param_groups[0]["lr"] = rate
        sgd.step()
        live.append(module.weight[0].detach().numpy().copy())
        shadow.append(averager.averaged_state_dict()["weight"][0].numpy().copy())
    return np.array(live), np.array(shadow)


@pytest.mark.parametrize("momentum", [0.0, 0.7])
@pytest.mark.parametrize("state", ["keep", "reset"])
def test_the_product_takes_the_same_path(momentum, state):
    """The real SwitchEMA with torch's SGD, on the same noise."""
    model, start = random_model(), np.array([1.0, -2.0, 3.0])
    rates = cosine_rates(0.1, 40)
    noise = np.random.default_rng(1).standard_normal((40, 3))
    recipe = SwitchSettings(
        decay=0.9, momentum=momentum, every=7, reset_momentum=state == "reset"
    )

    def make(module, optimizer):
        return SwitchEMA(
            module,
            optimizer,
            decay=constant(0.9),
            switch_every=Steps(7),
            optimizer_state=state,
        )

    live, shadow = torch_path(model, make, rates, start, noise, momentum)
    states = list(switch_ema_steps(model, recipe, rates, start, noise))
    assert np.allclose(live, [s.live for s in states], rtol=0, atol=1e-12)
    assert np.allclose(shadow, [s.shadow for s in states], rtol=0, atol=1e-12)


def test_the_literal_averager_takes_the_same_path():
    model, start = random_model(), np.array([1.0, -2.0, 3.0])
    rates, noise = constant_rates(0.1, 30), np.zeros((30, 3)) + 0.1

    def make(module, optimizer):
        return LiteralEq3(module, optimizer, decay=constant(0.8), every=Steps(5))

    live, _ = torch_path(model, make, rates, start, noise, 0.5)
    states = literal_steps(model, 0.8, 5, rates, start, noise, momentum=0.5)
    assert np.allclose(live, [s.live for s in states], rtol=0, atol=1e-12)


def test_noise_has_the_covariance_asked_for():
    model = random_model()
    draws = np.concatenate(list(islice(gradient_noise(model, 20_000, 0), 5)))
    products = draws[:, :, None] * draws[:, None, :]
    mean, error = mean_and_error(products)
    assert np.abs((mean - model.gradient_noise) / error).max() < 4
    again = next(gradient_noise(model, 20_000, 0))
    assert np.array_equal(again, draws[:20_000])


def test_dense_covariances_agree_with_the_closed_forms():
    """Curvature and noise without a common basis, and heavy-ball momentum."""
    model, chains, rates = random_model(), 4000, constant_rates(0.1, 150)
    exact = stationary(model, 0.1, 0.9, momentum=0.5)
    recipe = SwitchSettings(decay=0.9, momentum=0.5)
    noise = gradient_noise(model, chains, 2)
    state = last(switch_ema_steps(model, recipe, rates, np.zeros(3), noise))
    for weights, covariance in ((state.live, exact.sgd), (state.shadow, exact.ema)):
        mean, error = mean_and_error(weights[:, :, None] * weights[:, None, :])
        assert np.abs((mean - covariance) / error).max() < 3.5


def test_schedules():
    assert constant_rates(0.5, 3).tolist() == [0.5, 0.5, 0.5]
    assert np.allclose(cosine_rates(2.0, 4), [2, 1 + np.sqrt(0.5), 1, 1 - np.sqrt(0.5)])
    assert step_rates(1.0, 5, [2, 4], 0.5).tolist() == [1, 1, 0.5, 0.5, 0.25]


def test_bad_input():
    model = NoisyQuadratic.diagonal([1.0])
    with pytest.raises(ValueError, match="steps must be a whole number"):
        constant_rates(0.1, 0)
    with pytest.raises(ValueError, match="rate must be a number above 0"):
        constant_rates(-0.1, 3)
    with pytest.raises(ValueError, match="at least 1 step"):
        last(
            switch_ema_steps(model, SwitchSettings(decay=0.5), np.array([]), [1.0], [])
        )
    with pytest.raises(ValueError, match="chains must be at least 2"):
        mean_and_error(np.zeros((1, 3)))
    with pytest.raises(ValueError, match="decay must be in"):
        last(literal_steps(model, 1.0, None, constant_rates(0.1, 1), [1.0], [0.0]))
