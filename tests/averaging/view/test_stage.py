"""Open blocks of several models: of a whole and its parts, or with equal modules."""

import copy
import gc
from weakref import ref

import pytest
import torch
from torch import nn

from switch_ema import EMA, SwitchEMA, constant
from switch_ema.averaging.view.stage import stage_of
from tests.averaging.helpers import nudge


class Whole(nn.Module):
    def __init__(self):
        super().__init__()
        self.part, self.other = nn.Linear(2, 2), nn.Linear(2, 1)


class Equal(nn.Linear):
    """Equal to all models of its configuration."""

    def __eq__(self, other):
        return isinstance(other, Equal) and self.in_features == other.in_features

    def __hash__(self):
        return hash(self.in_features)


def whole_and_part():
    model = Whole()
    whole = EMA(model, decay=constant(0.5))
    part = SwitchEMA(model.part, decay=constant(0.9))
    nudge(model)
    whole.update()
    part.update()
    return model, whole, part


def test_the_live_weights_of_a_part_are_copied_while_the_whole_is_averaged():
    model, whole, part = whole_and_part()
    live, average = part.live_state_dict(), part.averaged_state_dict()
    with whole.averaged():
        shown = model.part.weight.clone()
        assert torch.equal(part.live_state_dict()["weight"], live["weight"])
        assert torch.equal(part.averaged_state_dict()["weight"], average["weight"])
        assert torch.equal(model.part.weight, shown)
    assert torch.equal(model.part.weight, live["weight"])


@pytest.mark.parametrize("order", [("whole", "part"), ("part", "whole")])
def test_a_whole_and_a_part_are_restored_in_any_order(order):
    model, whole, part = whole_and_part()
    live = copy.deepcopy(model.state_dict())
    with whole.averaged(), part.averaged():
        pass
    whole.show()
    part.show()
    assert torch.equal(model.other.weight, live["other.weight"])
    for name in order:
        {"whole": whole, "part": part}[name].restore()
    assert all(torch.equal(value, live[name]) for name, value in model.named_buffers())
    assert all(torch.equal(p, live[name]) for name, p in model.named_parameters())


def test_a_block_that_ends_shows_what_it_hid():
    model = Whole()
    parts = [EMA(one, decay=constant(0.5)) for one in (model.part, model.other)]
    whole = EMA(model, decay=constant(0.9))
    nudge(model)
    for averager in (*parts, whole):
        averager.update()
    first, second = (averager.averaged_state_dict()["weight"] for averager in parts)
    live = whole.live_state_dict()
    with parts[0].averaged(), parts[1].averaged():
        with whole.averaged():
            assert not torch.equal(model.part.weight, first)
        assert torch.equal(model.part.weight, first)
        assert torch.equal(model.other.weight, second)
    assert torch.equal(model.part.weight, live["part.weight"])
    assert torch.equal(model.other.weight, live["other.weight"])


def test_a_part_refuses_steps_and_epochs_while_the_whole_is_averaged():
    model, whole, part = whole_and_part()
    live = whole.live_state_dict()
    with whole.averaged():
        for call in (part.update, part.end_epoch, part.switch, part.reset):
            with pytest.raises(RuntimeError, match="leave the with block"):
                call()
    assert (part.steps, part.epochs, part.switches) == (1, 0, 0)
    assert torch.equal(model.part.weight, live["part.weight"])
    with part.averaged(), pytest.raises(RuntimeError, match="leave the with block"):
        whole.update()


def test_models_that_share_tensors_protect_each_other():
    shared, tied = nn.Linear(2, 2), nn.Linear(2, 2)
    one = nn.Sequential(shared, nn.Linear(2, 2))
    two, three = nn.Sequential(shared), tied
    tied.weight = one[1].weight
    averagers = [EMA(model, decay=constant(0.5)) for model in (one, two, three)]
    with averagers[0].averaged():
        for other in averagers[1:]:
            with pytest.raises(RuntimeError, match="leave the with block"):
                other.update()
    with averagers[1].averaged():
        averagers[2].update()  # these two have nothing in common


def test_a_part_joins_when_it_is_added_to_a_model():
    model, part = nn.Sequential(nn.Linear(2, 2)), nn.Linear(2, 2)
    whole, other = EMA(model), EMA(part)
    with whole.averaged():
        other.update()
    model.append(part)
    whole.refresh()
    with whole.averaged(), pytest.raises(RuntimeError, match="leave the with block"):
        other.update()


def test_a_module_without_tensors_is_no_bond():
    activation = nn.ReLU()
    one = EMA(nn.Sequential(nn.Linear(2, 2), activation))
    two = EMA(nn.Sequential(nn.Linear(2, 2), activation))
    with one.averaged():
        two.update()
    assert two.steps == 1


def test_models_that_are_equal_by_value_are_apart():
    models = Equal(2, 2), Equal(2, 2)
    one, two = (EMA(model, decay=constant(0.5)) for model in models)
    for model, averager in zip(models, (one, two), strict=True):
        nudge(model)
        averager.update()
    average = one.averaged_state_dict()["weight"]
    with one.averaged():
        two.update()
        with two.averaged():
            assert torch.equal(models[0].weight, average)
    assert two.steps == 2


def test_a_stage_follows_a_copy_and_is_freed_with_its_model():
    model = nn.Linear(2, 2)
    ema = EMA(model)
    stage, copied = copy.deepcopy((ema._stage, model))
    assert stage is stage_of(copied) is not ema._stage
    ema._stage.show(None)
    gone = ref(model)
    del model, ema
    gc.collect()
    assert gone() is None
    assert not stage.is_held
