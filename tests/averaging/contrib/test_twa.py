"""Trained averages against the solution of a least-squares problem in the subspace."""

import pytest
import torch
from torch import nn

from switch_ema.contrib import trained_average


def problem(count=3):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 5, generator=generator)
    y = torch.randn(40, 1, generator=generator)
    snapshots = [
        {"weight": torch.randn(1, 5, generator=generator)} for _ in range(count)
    ]
    return nn.Linear(5, 1, bias=False), snapshots, x, y


def loss(model, batch):
    return nn.functional.mse_loss(model(batch[0]), batch[1])


def test_training_finds_the_best_combination_of_the_snapshots():
    model, snapshots, x, y = problem()
    own = model.weight.detach().clone()
    batches = [(x, y)] * 400
    found = trained_average(model, snapshots, loss, batches, lr=0.1)["weight"]
    points = torch.cat([s["weight"] for s in snapshots])
    # min over c of |x (c W)' - y|: all combinations, not only those that sum to 1.
    best = torch.linalg.lstsq(x @ points.T, y).solution
    torch.testing.assert_close(found, (points.T @ best).T, rtol=1e-4, atol=1e-5)
    assert torch.equal(model.weight, own)


def test_it_begins_at_the_mean_and_stays_in_the_span():
    model, snapshots, x, y = problem()
    points = torch.cat([s["weight"] for s in snapshots])
    start = trained_average(model, snapshots, loss, [], lr=0.1)["weight"]
    torch.testing.assert_close(start, points.mean(0, keepdim=True))
    found = trained_average(model, snapshots, loss, [(x, y)] * 5, lr=0.1)["weight"]
    rest = torch.linalg.lstsq(points.T, found.T).residuals
    assert found.dist(start) > 0.01
    assert rest.numel() == 0 or rest.max() < 1e-10


def test_equal_snapshots_span_one_direction():
    model, snapshots, x, y = problem(1)
    twice = trained_average(model, snapshots * 2, loss, [(x, y)] * 9, lr=0.1)
    once = trained_average(model, snapshots, loss, [(x, y)] * 9, lr=0.1)
    torch.testing.assert_close(twice["weight"], once["weight"])


def test_after_an_error_the_model_has_its_weights():
    model, snapshots, _, _ = problem()
    own = model.weight.detach().clone()

    def broken(model, batch):
        raise KeyError("batch")

    with pytest.raises(KeyError):
        trained_average(model, snapshots, broken, [1], lr=0.1)
    assert torch.equal(model.weight, own)
    with pytest.raises(ValueError, match="a snapshot lacks weight"):
        trained_average(model, [{}], loss, [], lr=0.1)
