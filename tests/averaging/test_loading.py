"""Weights that are loaded between construction and the first step."""

import torch
from torch import nn

from switch_ema import EMA, SWA, constant
from tests.averaging.helpers import network, nudge


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
