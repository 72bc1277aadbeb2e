"""The average without a ``with`` block, and as a second module."""

import pytest
import torch
from torch import nn

from switch_ema import EMA, constant
from tests.averaging.helpers import network, nudge


def moved():
    model = network()
    ema = EMA(model, decay=constant(0.5))
    nudge(model)
    ema.update()
    return model, ema


def test_show_and_restore_are_averaged_without_a_block():
    model, ema = moved()
    live, average = ema.live_state_dict(), ema.averaged_state_dict()
    assert ema.show() is model
    assert torch.equal(model.stem.weight, average["stem.weight"])
    with pytest.raises(RuntimeError, match="inside averaged"):
        ema.update()
    ema.restore()
    assert torch.equal(model.stem.weight, live["stem.weight"])
    with pytest.raises(RuntimeError, match="show\\(\\) first"):
        ema.restore()


def test_a_copy_holds_the_average_and_stays_as_it_is():
    model, ema = moved()
    wrapped = EMA(nn.DataParallel(model), decay=constant(0.5))
    average = ema.averaged_state_dict()
    sampler = ema.averaged_copy()
    assert type(sampler) is type(model) and sampler is not model
    nudge(model)
    ema.update()
    assert torch.equal(sampler.stem.weight, average["stem.weight"])
    assert sampler.head.weight is sampler.body.weight  # tied as in the model
    assert type(wrapped.averaged_copy()) is type(model)


def test_loading_a_state_inside_is_refused():
    _, ema = moved()
    state = ema.state_dict()
    with ema.averaged(), pytest.raises(RuntimeError, match="leave the with block"):
        ema.load_state_dict(state)


def test_a_copy_made_in_inference_mode_can_be_trained():
    _, ema = moved()
    with torch.inference_mode():
        sampler = ema.averaged_copy()
    sampler.stem.weight.square().sum().backward()
    assert torch.equal(sampler.stem.weight.grad, 2 * sampler.stem.weight)
    assert not any(buffer.is_inference() for buffer in sampler.buffers())
