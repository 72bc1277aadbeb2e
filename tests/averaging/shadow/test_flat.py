"""Weights and buffers in one block of memory: they stay the same objects."""

import gc

import pytest
import torch
from torch import nn

from switch_ema import EMA, constant
from switch_ema.averaging.model.changes import watch
from tests.averaging.helpers import (
    Odd,
    assert_same,
    batches,
    copy_of,
    network,
    nudge,
    sgd,
    train_step,
)


@pytest.fixture(autouse=True)
def _without_compiled_models(monkeypatch):
    """A compiled model of another test makes the watch look more closely for good."""
    monkeypatch.setattr(watch, "is_blind", False)


def test_flat_storage_moves_memory_but_keeps_the_objects():
    model = network()
    optimizer = sgd(model)
    parameters, before = list(model.parameters()), copy_of(model.state_dict())
    ema = EMA(model, optimizer, flat=True)
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    assert_same(copy_of(model.state_dict()), before)
    spread = [p.data_ptr() for p in parameters]
    assert max(spread) - min(spread) < 8 * sum(p.numel() + 16 for p in parameters)
    train_step(model, optimizer, next(batches(1)))
    assert ema.steps == 1


def test_flat_storage_notices_a_part_that_was_moved():
    model = network()
    ema = EMA(model, decay=constant(0.5), flat=True)
    ema.update()
    model.stem.weight.data = model.stem.weight.data.clone()
    nudge(model)
    with pytest.warns(UserWarning, match="moved out of its flat buffer"):
        average = ema.averaged_state_dict()["stem.weight"]
    ema.update()
    moved = ema.averaged_state_dict()["stem.weight"]
    torch.testing.assert_close(moved, (average + model.stem.weight.detach()) / 2)


def test_two_flat_averages_of_one_model_share_its_block():
    model = network()
    averagers = [
        EMA(model, decay=constant(0.5), flat=True),
        EMA(model, decay=constant(0.9), flat=True, include="*weight"),
    ]
    alone = [EMA(model, decay=constant(d)) for d in (0.5, 0.9)]
    places = [parameter.data_ptr() for parameter in model.parameters()]
    for _ in range(3):
        nudge(model)
        for one in (*averagers, *alone):
            one.update()
    assert [parameter.data_ptr() for parameter in model.parameters()] == places
    for own, wanted in zip(averagers, alone, strict=True):
        expected = wanted.averaged_tensors()
        for name, average in own.averaged_tensors().items():
            torch.testing.assert_close(average, expected[name])


def test_the_block_of_a_dropped_average_can_be_left():
    model = network()
    EMA(model, flat=True)
    gc.collect()
    places = [parameter.data_ptr() for parameter in model.parameters()]
    ema = EMA(model, flat=True)
    assert [parameter.data_ptr() for parameter in model.parameters()] != places
    model.double()
    ema.refresh()
    spread = [parameter.data_ptr() for parameter in model.parameters()]
    size = 8 * sum(p.numel() + 16 for p in model.parameters())
    assert max(spread) - min(spread) < size


class Centred(nn.Module):
    """Replaces a buffer in its forward pass, and has another that it leaves alone."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2))
        self.register_buffer("seen", torch.zeros(2))
        self.register_buffer("scale", torch.zeros(3))

    def forward(self, x):
        self.seen = self.seen + x
        return x * self.weight


def test_flat_storage_follows_buffers_that_a_module_replaces(arithmetic):
    """0 and 1 average to 0.5, that and 2 to 1.25, shown or not; no warning is due."""
    model = Centred()
    ema = EMA(model, decay=constant(0.5), flat=True, buffers="average")
    for expected in (0.5, 1.25):
        model(torch.ones(2))
        model.scale += 1
        ema.update()
        with ema.averaged():
            assert model.seen.tolist() == [expected] * 2
            assert model.scale.tolist() == [expected] * 3
    assert model.seen.tolist() == [2.0] * 2
    model.seen = torch.ones(3)  # of another shape: it begins anew
    ema.update()
    assert ema.averaged_state_dict()["seen"].tolist() == [1.0] * 3


def test_flat_storage_notices_buffers_that_were_moved_unseen():
    """A cast goes past the registration of buffers; here there is no parameter."""
    layers = [nn.BatchNorm1d(2, affine=False) for _ in range(3)]
    model = nn.Sequential(*layers, nn.Linear(2, 2))
    ema = EMA(model, decay=constant(0.5), flat=True)
    model[1].double()  # neither the first nor the last, which every update looks at
    model[1].running_mean.add_(1)
    with pytest.warns(UserWarning, match="moved out of its flat buffer"):
        ema.averaged_state_dict()
    ema.update()
    average = ema.averaged_state_dict()["1.running_mean"]
    assert average.dtype == torch.float64
    assert average.tolist() == [0.5, 0.5]


def test_flat_storage_leaves_buffers_that_share_memory():
    model = nn.Linear(2, 2)
    model.register_buffer("whole", torch.zeros(4))
    model.register_buffer("part", model.whole[1:3])
    model.register_buffer("front", torch.zeros(4)[:2])
    ema = EMA(model, decay=constant(0.5), flat=True, buffers="average")
    model.whole += 1
    model.front += 1
    assert model.part.tolist() == [1.0, 1.0]
    ema.update()
    average = ema.averaged_state_dict()
    assert average["part"].tolist() == average["front"].tolist() == [0.5, 0.5]


def test_flat_storage_refuses_gaps():
    with pytest.raises(ValueError, match="flat=True needs dense parameters"):
        EMA(Odd(), flat=True)
