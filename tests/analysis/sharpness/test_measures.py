"""Loss under perturbations, on quadratics where it is known in closed form."""

import copy
import itertools
import math

import pytest
import torch
from torch import nn

from switch_ema.analysis.sharpness.curvature import LossSurface
from switch_ema.analysis.sharpness.measures import (
    ascent_gap,
    loss_under_noise,
    measure_sharpness,
    noise_curve,
    worst_case,
)

from .test_curvature import classify, data, network
from .test_spectrum import Point, quadratic

SPECTRUM = torch.tensor([8.0, 3.0, 1.0, 0.5, -0.5])
START = torch.tensor([0.3, -0.7, 0.2, 0.5, -0.1])


def test_ascent_gap_in_closed_form():
    surface, matrix = quadratic(SPECTRUM, START)
    slope = matrix @ START.double()
    bend = (slope @ matrix @ slope / slope.square().sum()).item()
    for rho in (0.05, 0.5):
        expected = rho * slope.norm().item() + rho**2 / 2 * bend
        assert ascent_gap(surface, rho) == pytest.approx(expected)


def test_ascent_gap_at_a_stationary_point_is_zero():
    assert ascent_gap(quadratic(SPECTRUM)[0]) == 0


def test_worst_case_in_a_ball_around_a_minimum():
    surface, _ = quadratic(SPECTRUM)
    found = worst_case(surface, 0.1, region="ball")
    assert found.increase == pytest.approx(0.1**2 / 2 * 8, rel=1e-6)
    assert found.percent == pytest.approx(100 * found.increase)  # of 1 + 0


def test_worst_case_in_a_ball_on_a_slope_solves_the_secular_equation():
    surface, matrix = quadratic(SPECTRUM, START)
    values, axes = torch.linalg.eigh(matrix)
    slope = axes.T @ (matrix @ START.double())
    # The maximum on the sphere has (shift - A) z = g with shift above all eigenvalues.
    low, high = values.max().item(), 1e3
    for _ in range(200):
        shift = (low + high) / 2
        step = slope / (shift - values)
        low, high = (shift, high) if step.norm() > 0.4 else (low, shift)
    expected = (slope @ step + step @ (values * step) / 2).item()
    found = worst_case(surface, 0.4, region="ball", steps=60)
    assert found.increase == pytest.approx(expected, rel=1e-5)
    base = surface.value()
    assert found.percent == pytest.approx(100 * found.increase / (1 + base))


def test_worst_case_in_a_box_is_at_the_best_corner():
    surface, _ = quadratic(SPECTRUM.clamp(min=0), START)
    weights = START.double()
    corners = itertools.product((-1.0, 1.0), repeat=len(weights))
    base = surface.value()
    best = max(
        surface.value(weights + 0.01 * (weights.abs() + 1) * torch.tensor(corner))
        for corner in corners
    )
    found = worst_case(surface, 0.01, region="box")
    assert found.increase == pytest.approx(best - base, rel=1e-9)


def test_worst_case_backs_off_where_a_long_step_falls():
    # A peak of height 1 at 0.3 from the weights; the far side of the ball is lower.
    model = Point(torch.zeros(3).double())

    def loss(model, batch):
        away = model() - torch.tensor([0.3, 0, 0]).double()
        return torch.exp(-40 * away.square().sum())

    surface = LossSurface(model, loss, [torch.zeros(1)])
    found = worst_case(surface, 1.0, region="ball", steps=40)
    assert found.increase == pytest.approx(1 - math.exp(-40 * 0.09), rel=1e-3)


def test_worst_case_is_never_below_the_weights():
    surface, _ = quadratic(-SPECTRUM.abs())
    assert worst_case(surface, 0.1, region="ball").increase == 0


def test_noise_in_closed_form():
    surface, matrix = quadratic(SPECTRUM, START)
    found = loss_under_noise(surface, 0.02, draws=800)
    expected = 0.02**2 / 2 * matrix.trace().item()
    # z' A z / 2 has the variance sigma^4 tr(A^2) / 2.
    spread = 0.02**2 * math.sqrt(matrix.square().sum().item() / 2)
    assert found.draws == 800
    assert found.error == pytest.approx(spread / math.sqrt(800), rel=0.2)
    assert abs(found.mean - expected) < 4 * found.error


def test_both_signs_cancel_the_gradient():
    model = Point(torch.zeros(5).double())
    surface = LossSurface(model, lambda m, b: m().sum(), [torch.zeros(1)])
    found = loss_under_noise(surface, 0.5, draws=4)
    assert found.mean == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(
    ("scale", "size"),
    [
        ("none", [[1.0, 1.0], [1.0, 1.0]]),
        ("parameter", [[3.0, 4.0], [0.0, 2.0]]),
        ("filter", [[12.5**0.5] * 2, [2**0.5] * 2]),
    ],
)
def test_noise_relative_to_the_weights(scale, size):
    model = nn.Linear(2, 2).double()
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[3.0, -4.0], [0.0, 2.0]]))
        model.bias.copy_(torch.tensor([-5.0, 0.5]))
    bias = [1.0, 1.0] if scale == "none" else [5.0, 0.5]
    sizes = torch.tensor([*size[0], *size[1], *bias]).double()

    def loss(model, batch):
        away = model.weight.flatten() - batch[:4], model.bias - batch[4:]
        return torch.cat(away).square().sum() / 2

    flat = torch.cat([model.weight.flatten(), model.bias]).detach()
    surface = LossSurface(model, loss, [flat])
    found = loss_under_noise(surface, 0.1, scale=scale, draws=500)
    expected = 0.1**2 / 2 * sizes.square().sum().item()
    assert abs(found.mean - expected) < 4 * found.error


def test_noise_relative_to_parameters_ignores_how_layers_share_their_scale():
    model, (x, y) = network(), data(20)
    model = nn.Sequential(model[0], nn.ReLU(), model[4])
    rescaled = copy.deepcopy(model)
    with torch.no_grad():
        rescaled[0].weight *= 10
        rescaled[0].bias *= 10
        rescaled[2].weight /= 10
    surfaces = [LossSurface(m, classify, [(x, y)]) for m in (model, rescaled)]
    one, two = (loss_under_noise(s, 0.1, scale="parameter").mean for s in surfaces)
    assert one == pytest.approx(two, rel=1e-9)
    one, two = (loss_under_noise(s, 0.1).mean for s in surfaces)
    assert abs(one - two) > 0.1 * abs(one)


def test_curve_uses_common_draws():
    surface, _ = quadratic(SPECTRUM)
    curve = noise_curve(surface, [0.1, 0.2], scale="none", draws=4, seed=3)
    assert curve.sigmas == (0.1, 0.2)
    assert curve.increases[0] == loss_under_noise(surface, 0.1, draws=4, seed=3)
    assert curve.increases[1].mean == pytest.approx(4 * curve.increases[0].mean)


def test_infinite_losses_are_reported():
    model = Point(torch.full((3,), 0.1).double())
    surface = LossSurface(model, lambda m, b: -m().log().sum(), [torch.zeros(1)])
    assert not math.isfinite(loss_under_noise(surface, 10.0, draws=3).mean)


def test_all_measures_at_once_leave_everything_as_it_is():
    model, batch = network().train(), data(20)
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    surface = LossSurface(model, classify, [batch])
    found = measure_sharpness(surface, count=3, draws=4)
    assert found == measure_sharpness(surface, count=3, draws=4)
    assert found.loss == surface.value()
    assert len(found.eigenvalues) == 3
    # One step of ascent is a point of the ball, whose worst case is at least as bad.
    assert found.ball.increase >= found.ascent_gap > 0
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training and all(module.training for module in model.modules())
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), name


def test_a_failing_loss_leaves_the_model_as_it_is():
    model, calls = network(), []
    before = copy.deepcopy(model.state_dict())

    def loss(model, batch):
        calls.append(1)
        if len(calls) == 4:
            raise KeyError("in the middle")
        return classify(model, batch)

    with pytest.raises(KeyError):
        noise_curve(LossSurface(model, loss, [data()]), [0.5])
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), name


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: ascent_gap(s, 0), "rho must be"),
        (lambda s: worst_case(s, -1), "epsilon must be"),
        (lambda s: worst_case(s, region="cube"), "region must be"),
        (lambda s: worst_case(s, steps=0), "steps must be"),
        (lambda s: loss_under_noise(s, 0), "sigma must be"),
        (lambda s: loss_under_noise(s, scale="layer"), "scale must be"),
        (lambda s: loss_under_noise(s, draws=1), "draws must be"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call(quadratic(SPECTRUM)[0])
