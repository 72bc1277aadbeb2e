"""Statistics of normalisation layers, recomputed for the average."""

import pytest
import torch
from torch import nn

from switch_ema import EMA, SwitchEMA, constant
from tests.averaging.helpers import (
    assert_same,
    batches,
    copy_of,
    network,
    sgd,
    train_step,
)


def trained():
    model = network()
    optimizer = sgd(model)
    ema = SwitchEMA(model, optimizer, decay=constant(0.9))
    for batch in batches(4):
        train_step(model, optimizer, batch)
    return model, ema


def test_statistics_are_the_plain_means_over_the_batches():
    model, ema = trained()
    live = copy_of(model.state_dict())
    ema.recalibrate(batches(3, seed=8))
    assert_same(copy_of(model.state_dict()), live)
    average = ema.averaged_state_dict()
    model.load_state_dict(average)
    with torch.no_grad():
        seen = [model.stem(x) for x, _ in batches(3, seed=8)]
    mean = torch.stack([s.mean((0, 2, 3)) for s in seen]).mean(0)
    variance = torch.stack([s.var((0, 2, 3)) for s in seen]).mean(0)
    torch.testing.assert_close(average["norm.running_mean"], mean)
    torch.testing.assert_close(average["norm.running_var"], variance)
    assert average["norm.num_batches_tracked"] == 3


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(2)

    def forward(self, left, right):
        return self.norm(left + right)


@pytest.mark.parametrize("shape", ["mapping", "callable", "tensor", "tuple"])
def test_models_with_any_inputs(shape):
    x = torch.randn(16, 2)
    model = TwoInputs() if shape in ("mapping", "callable") else nn.BatchNorm1d(2)
    name = "norm.running_mean" if shape in ("mapping", "callable") else "running_mean"
    ema = EMA(model)
    if shape == "mapping":
        ema.recalibrate([{"left": x, "right": x}])
    elif shape == "callable":
        ema.recalibrate([(x, x, "label")], lambda model, batch: model(*batch[:2]))
    else:
        ema.recalibrate([x] if shape == "tensor" else [(x, torch.zeros(16))])
    factor = 2 if shape in ("mapping", "callable") else 1
    torch.testing.assert_close(ema.averaged_state_dict()[name], factor * x.mean(0))


def test_everything_is_put_back_after_an_exception():
    model, ema = trained()
    model.eval()
    model.norm.train()
    live, average = copy_of(model.state_dict()), ema.averaged_state_dict()

    def broken():
        yield from batches(1)
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        ema.recalibrate(broken())
    assert_same(copy_of(model.state_dict()), live)
    assert_same(ema.averaged_state_dict(), average)
    assert model.norm.momentum == 0.1
    assert (model.training, model.norm.training) == (False, True)


def test_an_empty_loader_is_refused():
    _, ema = trained()
    average = ema.averaged_state_dict()
    with pytest.raises(ValueError, match="at least one batch"):
        ema.recalibrate([])
    assert_same(ema.averaged_state_dict(), average)


def test_statistics_that_are_left_out_are_refused():
    model = network()
    with pytest.raises(ValueError, match="leaves out those of norm"):
        EMA(model, exclude="norm").recalibrate(batches(1))


def test_models_without_statistics_need_nothing():
    ema = EMA(nn.Linear(2, 2))
    before = ema.averaged_state_dict()
    ema.recalibrate([])
    assert_same(ema.averaged_state_dict(), before)
