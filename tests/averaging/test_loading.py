"""Weights that are loaded between construction and the first step."""

import copy
import pickle

import pytest
import torch
from torch import nn

from switch_ema import EMA, SWA, constant
from tests.averaging.helpers import (
    move,
    network,
    nudge,
    scalar_model,
    shadow,
)
from tests.averaging.programs import td3


def pickled(value):
    return pickle.loads(pickle.dumps(value))


def test_without_an_optimizer_the_average_follows_what_is_loaded():
    model, pretrained = nn.Linear(2, 2), nn.Linear(2, 2)
    ema = EMA(model, decay=constant(0.5))
    model.load_state_dict(pretrained.state_dict())
    nudge(model)  # the first step, which is counted below
    ema.update()
    average = ema.averaged_state_dict()["weight"]
    torch.testing.assert_close(average, pretrained.weight.detach() + 0.5)


def test_a_part_that_is_loaded_is_followed_alone():
    model = network()
    ema = EMA(model, decay=constant(0.5))
    nudge(model)  # a step before update() counts from construction ...
    start = {n: p.detach() - 1 for n, p in model.named_parameters()}
    loaded = {k: torch.full_like(v, 3.0) for k, v in model.stem.state_dict().items()}
    model.stem.load_state_dict(loaded)  # ... but what is loaded, from there
    ema.update()
    average = ema.averaged_state_dict()
    torch.testing.assert_close(average["stem.weight"], loaded["weight"])
    torch.testing.assert_close(average["body.bias"], start["body.bias"] + 0.5)


def test_after_the_first_step_loading_is_not_followed():
    model = nn.Linear(1, 1)
    ema = EMA(model, decay=constant(0.5))
    ema.update()
    before = ema.averaged_state_dict()["weight"]
    model.load_state_dict({"weight": torch.ones(1, 1), "bias": torch.ones(1)})
    assert torch.equal(ema.averaged_state_dict()["weight"], before)
    assert not any(len(m._load_state_dict_post_hooks) for m in model.modules())


def test_an_averager_that_is_gone_is_not_called():
    model = nn.Linear(1, 1)
    SWA(model)
    model.load_state_dict({"weight": torch.ones(1, 1), "bias": torch.ones(1)})


def look_inside(ema):
    with ema.averaged():
        pass


@pytest.mark.parametrize(
    "look",
    [
        lambda ema: ema.call(torch.zeros(1, 1).double()),
        look_inside,
        lambda ema: ema.averaged_state_dict(),
        lambda ema: ema.averaged_tensors(),
        lambda ema: ema.state_dict(),
        lambda ema: ema.averaged_copy(),
    ],
)
def test_without_an_optimizer_looking_at_the_average_does_not_change_it(look):
    """0 is the average's start; the weight goes to -1 and -1.1 before the update."""
    model = scalar_model()
    ema = EMA(model, decay=constant(0.9))
    move(model, -1.0)
    look(ema)
    assert ema.averaged_tensors()["weight"].item() == 0.0
    move(model, -1.1)
    ema.update()
    assert shadow(ema) == pytest.approx(-0.11, abs=1e-12)


def test_with_an_optimizer_weights_set_before_the_first_step_are_followed():
    model = scalar_model()
    ema = EMA(model, torch.optim.SGD(model.parameters(), lr=1.0), decay=constant(0.9))
    move(model, -1.0)
    assert shadow(ema) == -1.0


class AveragedTarget(td3.CopiedTarget):
    """The same target without a second network."""

    def __init__(self, model):
        self.ema = EMA(model, decay=constant(1 - td3.RATE))

    def __call__(self, x):
        return self.ema.call(x)

    def update(self):
        self.ema.update()

    def state(self):
        return self.ema.averaged_state_dict()


def test_the_target_networks_of_td3_are_those_moved_by_hand():
    for ours, copied in zip(
        td3.train(AveragedTarget), td3.train(td3.CopiedTarget), strict=True
    ):
        mine, theirs = ours.state(), copied.state()
        assert mine.keys() == theirs.keys()
        for name, tensor in theirs.items():
            torch.testing.assert_close(mine[name], tensor, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("make_copy", [copy.deepcopy, pickled])
def test_a_copy_follows_what_is_loaded_as_the_original_does(make_copy):
    pretrained = nn.Linear(2, 2)
    ema = make_copy(EMA(nn.Linear(2, 2), decay=constant(0.5)))
    ema._model.load_state_dict(pretrained.state_dict())
    nudge(ema._model)
    ema.update()
    average = ema.averaged_state_dict()["weight"]
    torch.testing.assert_close(average, pretrained.weight.detach() + 0.5)


def test_a_model_that_holds_its_averager_is_copied():
    model = nn.Linear(2, 2)
    model.ema = EMA(model)
    twin = copy.deepcopy(model)
    assert twin.ema._model is twin
    twin.ema.update()
