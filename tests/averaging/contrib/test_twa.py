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


def test_statistics_and_other_buffers_are_restored():
    class Counting(nn.BatchNorm1d):
        def forward(self, x):
            self.seen = self.seen + len(x)
            return super().forward(x)

    model = nn.Sequential(nn.Linear(5, 2), Counting(2))
    model[1].register_buffer("seen", torch.zeros(()))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    snapshots = [{n: v + k for n, v in before.items()} for k in (1, 2)]
    trained_average(
        model, snapshots, lambda m, x: m(x).sum(), [torch.randn(4, 5)] * 2, lr=0.1
    )
    after = model.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())


def test_the_loss_need_not_use_every_parameter():
    model, snapshots, x, y = problem()
    alone = trained_average(model, snapshots, loss, [(x, y)] * 5, lr=0.1)
    model.unused = nn.Parameter(torch.ones(2))
    zeros = [snapshot | {"unused": torch.zeros(2)} for snapshot in snapshots]
    both = trained_average(model, zeros, loss, [(x, y)] * 5, lr=0.1)
    torch.testing.assert_close(both["weight"], alone["weight"])
    assert both["unused"].tolist() == [0, 0]


def test_float64_weights_are_not_rounded():
    model = nn.Linear(3, 1, bias=False).double()
    snapshots = [{"weight": 1 + torch.randn(1, 3).double() * 1e-9} for _ in range(3)]
    mean = torch.stack([snapshot["weight"] for snapshot in snapshots]).mean(0)
    found = trained_average(model, snapshots, loss, [], lr=0.1)["weight"]
    torch.testing.assert_close(found, mean, rtol=0, atol=1e-15)
