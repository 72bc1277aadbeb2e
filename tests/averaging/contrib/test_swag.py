"""SWAG against its formulas, written out over all sets of weights."""

import math

import pytest
import torch
from torch import nn

from switch_ema import LAWA, SWA
from switch_ema.contrib import SWAG, average_predictions
from tests.averaging.helpers import epoch, network, sgd


def vector(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()]).double()


def trained(rank=3, epochs=5, **options):
    model = network(dtype=torch.float64)
    optimizer = sgd(model)
    swag = SWAG(model, optimizer, rank=rank, **options)
    taken = []
    for seed in range(epochs):
        epoch(model, optimizer, swag, seed, dtype=torch.float64)
        taken.append(vector(model))
    return model, swag, torch.stack(taken)


def kept(shadow):
    """A shadow's parameters in the order of the model's, the tied one once."""
    pairs = zip(shadow.slots, shadow.tensors, strict=True)
    return {slot.name: t for slot, t in pairs if not slot.is_buffer}


def in_order(model, shadow):
    found = kept(shadow)
    return torch.cat([found[name].flatten() for name, _ in model.named_parameters()])


def test_mean_variance_and_deviations_are_those_of_the_formulas():
    model, swag, taken = trained()
    with swag.averaged():
        torch.testing.assert_close(vector(model), taken.mean(0))
    variance = (taken**2).mean(0) - taken.mean(0) ** 2
    torch.testing.assert_close(
        in_order(model, swag._variance), variance, atol=1e-14, rtol=1e-9
    )
    for n, deviation in zip((3, 4, 5), swag._deviations, strict=True):
        expected = taken[n - 1] - taken[:n].mean(0)
        torch.testing.assert_close(in_order(model, deviation), expected)


def test_samples_have_the_mean_and_the_covariance_of_the_paper():
    """1,500 samples: a variance is known to 3.7%, so 20% is more than five errors."""
    torch.manual_seed(0)
    model = nn.Linear(3, 1, bias=False).double()
    swag, taken = SWAG(model, rank=3), []
    for _ in range(5):
        nn.init.normal_(model.weight)
        swag.end_epoch()
        taken.append(vector(model))
    taken, live = torch.stack(taken), vector(model)
    drawn = torch.stack([vector(m) for m in swag.samples(1500, seed=1)])
    assert torch.equal(vector(model), live)
    variance = (taken**2).mean(0) - taken.mean(0) ** 2
    deviations = torch.stack([in_order(model, d) for d in swag._deviations])
    expected = torch.diag(variance) / 2 + deviations.T @ deviations / (2 * (3 - 1))
    scale = expected.diag().sqrt()
    error = (torch.cov(drawn.T) - expected) / torch.outer(scale, scale)
    assert error.abs().max() < 0.2
    far = (drawn.mean(0) - taken.mean(0)).abs() / (scale / math.sqrt(1500))
    assert far.max() < 5


def test_new_parameters_have_no_spread_yet():
    model = nn.Sequential(nn.Linear(2, 2))
    swag = SWAG(model, rank=3)
    for number in range(6):
        if number == 3:
            model.append(nn.Linear(2, 2))
            nn.init.constant_(model[1].weight, 100.0)
            swag.refresh()
        nn.init.normal_(model[0].weight)
        swag.end_epoch()
    for sample in swag.samples(3):
        torch.testing.assert_close(sample[1].weight, torch.full((2, 2), 100.0))


def test_a_sample_is_drawn_by_its_seed_and_scaled():
    model, swag, taken = trained()

    def draw(seed, scale=1.0):
        with swag.sampled(seed, scale=scale):
            return vector(model) - taken.mean(0)

    assert torch.equal(draw(3), draw(3))
    assert not torch.equal(draw(3), draw(4))
    torch.testing.assert_close(draw(3, 4.0), 2 * draw(3))


def test_before_the_start_there_is_nothing_to_sample():
    with pytest.raises(RuntimeError, match="nothing to sample"):
        trained(epochs=1, start=5)[1].sampled(0)
    with pytest.raises(ValueError, match="rank must be a whole number of at least 2"):
        SWAG(network(), rank=1)


def test_the_mean_is_swas():
    _, swag, _ = trained()
    model = network(dtype=torch.float64)
    optimizer = sgd(model)
    swa = SWA(model, optimizer)
    for seed in range(5):
        epoch(model, optimizer, swa, seed, dtype=torch.float64)
    found, expected = swag.averaged_state_dict(), swa.averaged_state_dict()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_an_ensemble_averages_the_predictions_of_its_members():
    model = network()
    optimizer = sgd(model)
    lawa = LAWA(model, optimizer, k=2)
    x, weights = torch.randn(4, 1, 5, 5), []
    for seed in range(3):
        epoch(model, optimizer, lawa, seed)
        weights.append({n: t.clone() for n, t in model.state_dict().items()})
    live = vector(model)

    def predict(member):
        return member.eval()(x).softmax(1)

    found = average_predictions(lawa.members(), predict)
    assert torch.equal(vector(model), live)
    other = network(seed=4)
    expected = []
    for state in weights[1:]:
        other.load_state_dict(state)
        with torch.no_grad():
            expected.append(predict(other))
    torch.testing.assert_close(found, torch.stack(expected).mean(0))
    with pytest.raises(ValueError, match="at least one model"):
        average_predictions([], predict)
