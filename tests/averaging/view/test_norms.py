"""Batch norm in training mode inside ``averaged()``."""

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import update_bn

from switch_ema import EMA, SWA, SwitchEMA, constant
from tests.averaging.helpers import (
    assert_same,
    batches,
    copy_of,
    network,
    sgd,
    train_step,
)

WARNING = "norm ran in training mode inside averaged"


def inputs(count):
    return [x for x, _ in batches(count)]


def trained(method=SwitchEMA, **options):
    model = network()
    optimizer = sgd(model)
    averager = method(model, optimizer, **options)
    for batch in batches(4):
        train_step(model, optimizer, batch)
    return model, averager


@pytest.fixture
def no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.mark.parametrize(
    "mode", [torch.no_grad, torch.inference_mode, torch.enable_grad]
)
def test_a_forward_pass_in_training_mode_warns_once(mode):
    model, sema = trained(decay=constant(0.9))
    live = copy_of(model.state_dict())
    x = inputs(1)[0]
    with pytest.warns(UserWarning, match=WARNING), sema.averaged(), mode():
        model(x)
    assert_same(copy_of(model.state_dict()), live)  # the live statistics are restored
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with sema.averaged():
            model(x)


def test_evaluation_mode_and_training_outside_do_not_warn(no_warning):
    model, sema = trained(decay=constant(0.9))
    x = inputs(1)[0]
    model(x)
    with sema.averaged():
        model.eval()
        model(x)
        sema.live_state_dict()  # swaps twice
        with sema.averaged():
            model(x)
        model.train()
    sema.averaged_state_dict()
    model(x)
    sema.call(x)  # discards its statistics


@pytest.mark.parametrize("by", ["recalibrate", "nested", "torch"])
def test_recomputing_the_statistics_does_not_warn(by, no_warning):
    model, sema = trained(decay=constant(0.9))
    more = inputs(9)  # more than were trained on
    if by == "recalibrate":
        sema.recalibrate(more)
    with sema.averaged():
        if by == "nested":
            sema.recalibrate(more)
        if by == "torch":
            update_bn(more, model)
    assert sema.averaged_state_dict()["norm.num_batches_tracked"] >= 4


def test_live_statistics_are_named_where_there_is_no_average_yet():
    model, swa = trained(SWA, start=3)
    changed = "changed the live running statistics"
    with pytest.warns(UserWarning, match=changed), swa.averaged():
        model(inputs(1)[0])


def test_layers_that_are_not_averaged_are_watched():
    model, ema = trained(EMA, exclude="norm")
    with pytest.warns(UserWarning, match=WARNING), ema.averaged():
        model(inputs(1)[0])


def test_scripted_and_compiled_models():
    torch.manual_seed(0)
    x = torch.randn(8, 3)
    plain = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    scripted = torch.jit.script(copy.deepcopy(plain))
    compiled = torch.compile(plain, backend="aot_eager")
    for model in (scripted, compiled):
        ema = EMA(model)
        model(x)
        ema.update()
        model.eval()
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            with ema.averaged(), torch.no_grad():
                model(x)
        model.train()
        noticed = pytest.warns(UserWarning, match="1 ran in training mode")
        with noticed, ema.averaged(), torch.no_grad():
            model(x)


def test_a_warning_that_is_an_error_leaves_the_live_weights():
    model, sema = trained(decay=constant(0.9))
    live = copy_of(model.state_dict())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        raised = pytest.raises(UserWarning, match=WARNING)
        with raised, sema.averaged(), sema.averaged():
            model(inputs(1)[0])
    assert_same(copy_of(model.state_dict()), live)
    sema.end_epoch()  # no block is open
