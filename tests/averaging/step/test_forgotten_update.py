"""Averagers that training does not reach warn once, and others never."""

import gc
import pickle
import warnings

import pytest
import torch
from torch import nn

from switch_ema import EMA, SWA, Steps, SwitchEMA, attach, constant
from switch_ema.averaging.methods import switch_ema
from switch_ema.averaging.step import forgotten_update

NEVER_UPDATED = "steps or more, but update\\(\\) was never called"
NEVER_ENDED = "end_epoch\\(\\) was never called"
EMPTY = "end_epoch\\(\\) was called again without a step"


def fresh():
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def train(model, optimizer, steps, after_step=lambda: None):
    for _ in range(steps):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        after_step()


@pytest.fixture
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.mark.parametrize("look", ["averaged_state_dict", "state_dict", "show"])
def test_an_average_that_is_never_updated_warns_once(look):
    model, optimizer = fresh()
    ema = EMA(model)
    train(model, optimizer, forgotten_update.MANY_STEPS)
    with pytest.warns(UserWarning, match=NEVER_UPDATED):
        getattr(ema, look)()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ema.averaged_state_dict()
    if look == "show":
        ema.restore()  # its signal handlers would stay for other tests


def test_steps_that_need_no_update_do_not_warn(quiet):
    model, optimizer = fresh()
    other, of_other = fresh()
    hooked, delayed, idle = EMA(model, optimizer), EMA(model), EMA(other)
    swa = SWA(model)  # averages epochs, not steps
    train(model, optimizer, forgotten_update.MANY_STEPS - 1)
    delayed.averaged_state_dict()
    delayed.update()
    # Calls of update() that stop again do so on purpose.
    train(model, optimizer, forgotten_update.MANY_STEPS)
    for averager in (hooked, delayed, idle, swa):
        averager.averaged_state_dict()
    train(other, of_other, 3)
    idle.averaged_state_dict()


def test_counting_ends_with_the_averager_or_its_first_update():
    model, optimizer = fresh()
    gc.collect()
    before = len(forgotten_update._WAITING)
    first, second = EMA(model), EMA(model)
    assert len(forgotten_update._WAITING) == before + 2
    first.update()
    pickle.loads(pickle.dumps(second))
    del second
    gc.collect()
    assert len(forgotten_update._WAITING) == before
    third = EMA(model)
    train(model, optimizer, forgotten_update.MANY_STEPS + 1)
    assert len(forgotten_update._WAITING) == before
    assert third.steps == 0


def test_a_switch_ema_whose_epochs_never_end_warns_once(monkeypatch):
    monkeypatch.setattr(switch_ema, "_MANY_STEPS", 20)
    model, optimizer = fresh()
    sema = SwitchEMA(model, optimizer, decay=constant(0.5))
    told = SwitchEMA(model, optimizer, decay=constant(0.5), steps_per_epoch=5)
    train(model, optimizer, 19)
    sema.averaged_state_dict()
    train(model, optimizer, 1)
    with pytest.warns(UserWarning, match=f"not switched in 20 steps.*{NEVER_ENDED}"):
        sema.averaged_state_dict()
    with pytest.warns(UserWarning, match=NEVER_ENDED):
        told.state_dict()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sema.averaged_state_dict()
        told.averaged_state_dict()


@pytest.mark.parametrize(
    "options",
    [
        {"switch_every": Steps(1000)},
        {"switch_every": "1000it", "switch_start": 10},
        {"steps_per_epoch": 30},
    ],
)
def test_schedules_that_still_wait_do_not_warn(options, monkeypatch, quiet):
    monkeypatch.setattr(switch_ema, "_MANY_STEPS", 20)
    model, optimizer = fresh()
    sema = SwitchEMA(model, optimizer, decay=constant(0.5), **options)
    by_hand = SwitchEMA(model, optimizer, decay=constant(0.5))
    by_hand.switch()
    train(model, optimizer, 25)
    sema.averaged_state_dict()
    by_hand.averaged_state_dict()


@pytest.mark.parametrize("method", [EMA, SwitchEMA, SWA])
def test_two_ends_of_one_epoch_warn_once(method):
    model, optimizer = fresh()
    averager = method(model, optimizer)
    train(model, optimizer, 2)
    averager.end_epoch()
    with pytest.warns(UserWarning, match=EMPTY):
        averager.end_epoch()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        averager.end_epoch()
    assert averager.epochs == 3


def test_epochs_with_steps_or_without_counts_do_not_warn(quiet):
    model, optimizer = fresh()
    averager, uncounted = EMA(model, optimizer), SWA(model)
    averager.end_epoch()  # before the first step
    for _ in range(2):
        train(model, optimizer, 2)
        averager.end_epoch()
        uncounted.end_epoch()
    resumed = EMA(model, optimizer)
    resumed.load_state_dict(averager.state_dict())
    resumed.end_epoch()  # whether the saved run had ended it is not known
    loader = attach(optimizer, [torch.ones(1, 2)], model=model)
    for _ in loader:  # a pass without a step
        pass
    assert loader.averager.epochs == 0
