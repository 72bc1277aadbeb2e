"""Weights that share memory: by one object, by one place, by a part of it."""

import pytest
import torch
from torch import nn

from switch_ema import EMA, FusedAdamW, FusedSGD, SwitchEMA, constant
from tests.averaging.helpers import assert_same, copy_of

pytestmark = pytest.mark.usefixtures("arithmetic")


def transposed() -> nn.Module:
    """An autoencoder whose decoder is its encoder, transposed."""
    model = nn.Sequential(nn.Linear(3, 2, bias=False), nn.Linear(2, 3, bias=False))
    model[1].weight.data = model[0].weight.data.t()
    return model


def sliced() -> nn.Module:
    model = nn.Sequential(nn.Embedding(6, 2), nn.Linear(2, 3, bias=False))
    model[1].weight = nn.Parameter(model[0].weight.data[2:5])
    return model


def slimmable() -> nn.Module:
    """A small layer that is the first columns of a large one."""
    model = nn.Sequential(nn.Linear(8, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[1].weight = nn.Parameter(model[0].weight.data[:, :4])
    return model


@pytest.mark.parametrize("make", [transposed, sliced, slimmable])
def test_a_weight_within_another_is_averaged_once(make):
    model = make()
    before = copy_of(model.state_dict())
    ema = EMA(model, decay=constant(0.75))
    model[0].weight.data += 1
    live = copy_of(model.state_dict())
    ema.update()
    with ema.averaged():
        for name, value in model.state_dict().items():
            torch.testing.assert_close(value, before[name] + 0.25)
    assert_same(model.state_dict(), live)
    ema.load_state_dict(ema.state_dict())


def test_a_part_of_memory_in_two_weights_is_refused():
    memory = torch.zeros(6)
    model = nn.ParameterList([memory[:4], memory[2:]])
    with pytest.raises(ValueError, match="0 and 1 overlap in memory"):
        EMA(model)
    EMA(model, exclude="1")


def test_columns_that_are_partly_in_two_weights_are_refused():
    memory = torch.zeros(4, 6)
    model = nn.ParameterList([memory[:, :4], memory[:, 2:]])
    with pytest.raises(ValueError, match="0 and 1 overlap in memory"):
        EMA(model)
    EMA(model, exclude="1")


def test_weights_between_each_others_rows_are_averaged_separately():
    memory = torch.zeros(4, 3)
    model = nn.ParameterList([memory[::2], memory[1::2]])
    ema = EMA(model, decay=constant(0.75))
    memory[1] += 1
    live = copy_of(model.state_dict())
    ema.update()
    with ema.averaged():
        assert memory.sum(1).tolist() == [0, 0.75, 0, 0]
    assert_same(model.state_dict(), live)


def test_a_weight_begins_before_or_within_a_gap_of_another():
    memory = torch.zeros(8)
    separate = nn.ParameterList([memory[::4], memory[1:3], memory[3::4]])
    assert len(EMA(separate).averaged_tensors()) == 3
    both = nn.ParameterList([memory[::4], memory[2:5]])
    with pytest.raises(ValueError, match="0 and 1 overlap in memory"):
        EMA(both)


def test_a_buffer_that_is_a_column_of_a_weight_shows_the_average():
    model = nn.Linear(3, 3, bias=False)
    model.register_buffer("column", model.weight.data[:, 0])
    sema = SwitchEMA(model, decay=constant(0.75))
    model.weight.data += 1
    live = copy_of(model.state_dict())
    sema.update()
    average = sema.averaged_state_dict()
    with sema.averaged():
        assert torch.equal(model.column, model.weight[:, 0])
    assert_same(model.state_dict(), live)
    sema.switch()
    assert_same(model.state_dict(), average)


@pytest.mark.parametrize("make", [transposed, sliced, slimmable])
def test_flat_storage_refuses_what_it_would_tear_apart(make):
    with pytest.raises(ValueError, match=r"cannot move 0\.weight, which shares memory"):
        EMA(make(), flat=True)


@pytest.mark.filterwarnings("ignore:No working C compiler")
@pytest.mark.parametrize("optimizer_class", [FusedSGD, FusedAdamW])
def test_fused_steps_leave_two_parameters_of_one_memory_to_the_update(optimizer_class):
    """Both are stepped, one after the other: the average is that of the second."""
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    model[1].weight.data = model[0].weight.data
    optimizer = optimizer_class(model.parameters(), lr=0.1)
    ema = EMA(model, optimizer, decay=constant(0.75))
    average = model[0].weight.detach().clone()
    for _ in range(3):
        model(torch.randn(4, 3)).square().mean().backward()
        optimizer.step()
        average.lerp_(model[0].weight.detach(), 0.25)
        torch.testing.assert_close(ema.averaged_state_dict()["0.weight"], average)


def test_buffers_in_which_one_element_stands_for_many_are_left_alone():
    model = nn.Linear(2, 2)
    model.register_buffer("ones", torch.ones(1).expand(4))
    ema = EMA(model, decay=constant(0.5))
    ema.update()
    with ema.averaged():
        assert model.ones.tolist() == [1.0] * 4
    assert ema.averaged_state_dict()["ones"].tolist() == [1.0] * 4
