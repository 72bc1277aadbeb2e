"""Pulls in the noisy quadratic: against the other exact path and the real methods."""

import numpy as np
import pytest
import torch

from switch_ema import Lookahead, Steps, SwitchEMA, constant
from switch_ema.contrib import PACE, Snoo
from switch_ema.theory.periodic import contraction, steady_losses
from switch_ema.theory.pulls import (
    OuterMomentum,
    Pulling,
    Switching,
    equal_pull,
    settle,
)
from switch_ema.theory.quadratic import NoisyQuadratic, SwitchSettings
from tests.averaging.helpers import scalar_model, weight


@pytest.mark.parametrize("h", [0.001, 0.1, 1.0, 1.5])
@pytest.mark.parametrize("every", [1, 10, 100])
def test_switching_is_what_the_general_recursion_gives(h, every):
    model = NoisyQuadratic.diagonal([h])
    settings = SwitchSettings(decay=0.99, every=every)
    found = settle(Switching(decay=0.99, every=every), h, 1.0)
    expected = steady_losses(model, settings, 1.0).shadow[-1]
    assert found.loss == pytest.approx(expected, rel=1e-10)
    speed = contraction(model, settings, 1.0)
    assert found.contraction == pytest.approx(speed, rel=1e-10)


def test_without_a_pull_it_is_an_ema():
    model, settings = NoisyQuadratic.diagonal([0.1]), SwitchSettings(decay=0.9)
    expected = steady_losses(model, settings, 1.0).shadow[-1]
    found = settle(Pulling(decay=0.9, pull=0.0), 0.1, 1.0)
    assert found.loss == pytest.approx(expected, rel=1e-12)


def path(make, steps, curvature=0.3, rate=0.5):
    """The live weight of a real training without noise, from 1."""
    model = scalar_model(1.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    averager = make(model, optimizer)
    for _ in range(steps):
        optimizer.zero_grad()
        (0.5 * curvature * model.weight.square()).sum().backward()
        optimizer.step()
    return weight(model), averager.averaged_state_dict()["weight"].item()


@pytest.mark.parametrize(
    ("make", "method"),
    [
        (
            lambda m, o: SwitchEMA(
                m, o, decay=constant(0.9), switch_every=Steps(4), live_share=0.3
            ),
            Switching(decay=0.9, every=4, live_share=0.3),
        ),
        (
            lambda m, o: Lookahead(m, o, k=4, alpha=0.5),
            OuterMomentum(k=4, alpha=0.5),
        ),
        (
            lambda m, o: Snoo(m, o, k=4, alpha=0.7, momentum=0.4),
            OuterMomentum(k=4, alpha=0.7, momentum=0.4),
        ),
    ],
    ids=["switch", "lookahead", "snoo"],
)
def test_the_matrices_take_the_path_of_the_real_method(make, method):
    state = np.ones(3)
    for _ in range(5):
        for matrix, _ in method.steps(0.3, 0.5):
            state = matrix @ state
    assert path(make, 20) == pytest.approx(state[:2], abs=1e-12)


def test_so_does_a_pull_whose_weights_change_with_the_step():
    strength, kappa, rate = 0.8, 0.2, 0.5
    state = np.ones(3)
    for t in range(1, 16):
        new = (1 + t) ** -kappa
        pulling = Pulling(decay=1 - new, pull=rate * strength * new)
        for matrix, _ in pulling.steps(0.3, rate):
            state = matrix @ state
    found = path(lambda m, o: PACE(m, o, strength=strength, kappa=kappa), 15)
    assert found == pytest.approx(state[:2], abs=1e-12)


def test_simulated_chains_settle_at_the_computed_loss():
    """200,000 values of one long chain, whose loss is known to about 2%."""
    method = Pulling(decay=0.9, pull=0.2)
    generator = np.random.default_rng(0)
    state, total = np.zeros((400, 3)), 0.0
    for step in range(1000):
        for matrix, spread in method.steps(0.3, 0.5):
            noise = generator.standard_normal((400, 1))
            state = state @ matrix.T + noise * spread
        total += float((state[:, 1] ** 2).mean()) if step >= 500 else 0.0
    expected = settle(method, 0.3, 0.5).loss
    assert 0.5 * 0.3 * total / 500 == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("h", [0.001, 0.01, 0.1, 0.5])
@pytest.mark.parametrize("every", [10, 100])
def test_at_equal_speed_a_continuous_pull_settles_lower(h, every):
    switching = Switching(decay=0.99, every=every)
    pull = equal_pull(switching, h, 1.0, decay=0.99)
    assert pull is not None
    pulling = settle(Pulling(decay=0.99, pull=pull), h, 1.0)
    periodic = settle(switching, h, 1.0)
    assert pulling.contraction == pytest.approx(periodic.contraction, abs=1e-9)
    assert pulling.loss < periodic.loss


def test_no_pull_is_as_fast_as_a_switch_where_sgd_overshoots():
    assert equal_pull(Switching(decay=0.99, every=10), 1.5, 1.0, decay=0.99) is None


def test_too_large_rates_have_no_steady_state():
    with pytest.raises(ValueError, match="too large"):
        settle(Pulling(decay=0.9, pull=0.0), 1.0, 2.5)
