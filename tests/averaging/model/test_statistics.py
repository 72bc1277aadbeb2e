"""Which float buffers are averaged: running statistics, all, or none."""

import pytest
import torch
from torch import nn

from switch_ema import EMA, SwitchEMA, constant
from switch_ema.averaging.model.slots import all_slots
from tests.averaging.programs import moco

pytestmark = pytest.mark.usefixtures("arithmetic")


def pretrain(**options):
    """Train MoCo with switches; return the model and its shortest key."""
    torch.manual_seed(0)
    model = moco.Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sema = SwitchEMA(model, optimizer, decay=constant(0.9), **options)

    def step():
        optimizer.step()
        optimizer.zero_grad()

    for _ in moco.train(model, sema.call, step):
        centre = model.centre.clone()
        assert sema.end_epoch()
    return model, sema, centre


@pytest.mark.parametrize("flat", [False, True])
def test_a_switch_leaves_the_queue_and_an_average_inside_the_model(flat):
    model, sema, centre = pretrain(flat=flat)
    norms = model.queue.norm(dim=0)
    torch.testing.assert_close(norms, torch.ones(moco.LENGTH))
    assert torch.equal(model.centre, centre)
    averages = sema.averaged_state_dict()
    assert torch.equal(averages["queue"], model.queue)


def test_the_queue_is_averaged_if_it_is_asked_for():
    model, _, centre = pretrain(buffers="average")
    assert model.queue.norm(dim=0).min() < 0.9
    assert not torch.equal(model.centre, centre)


class Renormalised(nn.Module):
    """A layer of another library, with torch's names."""

    def __init__(self):
        super().__init__()
        self.register_buffer("running_mean", torch.zeros(2))
        self.register_buffer("running_var", torch.ones(2))
        self.register_buffer("codebook", torch.zeros(2))


@pytest.mark.parametrize(
    "layer",
    [
        nn.BatchNorm1d(2),
        nn.BatchNorm3d(2),
        nn.SyncBatchNorm(2),
        nn.InstanceNorm2d(2, track_running_stats=True),
        Renormalised(),
    ],
)
def test_running_statistics_are_known(layer):
    found = {slot.name for slot in all_slots(layer) if slot.is_statistic}
    assert {"running_mean", "running_var"} <= found
    assert "codebook" not in found


@pytest.mark.parametrize(
    ("buffers", "average", "codes"),
    [("statistics", 0.5, 1.0), ("average", 0.5, 0.5), ("copy", 1.0, 1.0)],
)
def test_each_policy_by_its_numbers(buffers, average, codes):
    model = Renormalised()
    ema = EMA(model, decay=constant(0.5), buffers=buffers)
    for name in ("running_mean", "codebook"):
        getattr(model, name).fill_(1.0)
    ema.update()
    state = ema.averaged_state_dict()
    assert state["running_mean"].tolist() == [average] * 2
    assert state["codebook"].tolist() == [codes] * 2


def test_tied_statistics_are_averaged():
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Identity())
    model[1].register_buffer("copy_of_mean", model[0].running_mean)
    ema = EMA(model, decay=constant(0.5))
    model[0].running_mean.fill_(1.0)
    ema.update()
    assert ema.averaged_state_dict()["1.copy_of_mean"].tolist() == [0.5, 0.5]
