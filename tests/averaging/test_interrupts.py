"""Ctrl-C at any moment: updates, loads and averaged() are whole or did not happen."""

import copy
import signal

import pytest
import torch
from torch import nn

from switch_ema import EMA, FusedAdamW, SwitchEMA, Windows, constant
from switch_ema.averaging._signals import Uninterrupted
from switch_ema.averaging.shadow.state import shadow_state
from tests.averaging.helpers import network, nudge
from tests.averaging.interrupts import InterruptAt, same, weights


def interrupted_everywhere(call, check, step=1):
    """Call with an interrupt at each moment until none arrives; check after each."""
    for moment in range(1, 100_000, step):
        was_interrupted = False
        with InterruptAt(moment) as interrupt:
            try:
                call()
            except KeyboardInterrupt:
                was_interrupted = True
        check(was_interrupted)
        if interrupt.left > 0:
            return moment
    raise AssertionError("never reached the end")


def test_an_update_is_counted_with_its_average():
    model = nn.Linear(2, 1)
    ema = EMA(model, decay=constant(0.5))
    ema.update()
    nudge(model)
    start = copy.deepcopy(ema.state_dict())
    expected = {}

    def check(was_interrupted):
        state = ema.state_dict()
        if state["steps"] == 1:
            assert same(state["shadow"], start["shadow"])
        else:
            assert state["steps"] == 2
            expected.setdefault("shadow", state["shadow"])
            assert same(state["shadow"], expected["shadow"])
        ema.load_state_dict(start)

    assert interrupted_everywhere(ema.update, check) > 20


@pytest.mark.parametrize("kind", [FusedAdamW, torch.optim.AdamW])
def test_all_averagers_of_an_optimizer_count_a_step_with_their_averages(kind):
    model = nn.Linear(2, 1)
    optimizer = kind(model.parameters(), lr=0.1)
    averagers = [EMA(model, optimizer, decay=constant(d)) for d in (0.9, 0.8)]
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    seen = set()

    def check(was_interrupted):
        steps = {one.steps for one in averagers}
        assert len(steps) == 1
        averages = [shadow_state(one._shadow) for one in averagers]
        for own, old in zip(averages, check.averages, strict=True):
            has_moved = not any(torch.equal(own[name], old[name]) for name in own)
            assert has_moved == (steps != check.steps)
        seen.add((was_interrupted, steps != check.steps))
        check.averages, check.steps = averages, steps
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    check.averages = [shadow_state(one._shadow) for one in averagers]
    check.steps = {1}
    assert interrupted_everywhere(optimizer.step, check) > 100
    assert seen == {(True, False), (True, True), (False, True)}


def test_all_averagers_of_two_optimizers_count_a_round():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in model]
    averagers = [EMA(model, optimizers) for _ in range(2)]

    def check(was_interrupted):
        assert len({one.steps for one in averagers}) == 1

    # The second step of the first ends a round before it begins.
    assert interrupted_everywhere(optimizers[0].step, check) > 50


@pytest.mark.filterwarnings("ignore:end_epoch")
def test_windows_are_updated_together():
    model = nn.Linear(2, 1)
    windows = Windows(model)

    def check(was_interrupted):
        assert len({windows[name].steps for name in windows}) == 1
        assert len({windows[name].epochs for name in windows}) == 1

    for call in (windows.update, windows.end_epoch):
        nudge(model)
        assert interrupted_everywhere(call, check, 3) > 50


def test_an_error_after_a_step_that_averages_does_not_hold_signals_back():
    model = nn.Linear(2, 1)
    optimizer = FusedAdamW(model.parameters(), lr=0.1)
    ema = EMA(model, optimizer)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)

    def fail():
        signal.raise_signal(signal.SIGTERM)
        raise RuntimeError("in torch's wrapper")

    stopped = []
    before = signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
    try:
        optimizer._optimizer_step_code = fail
        with pytest.raises(RuntimeError, match="in torch's wrapper"):
            optimizer.step()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        del optimizer._optimizer_step_code
        optimizer.step()  # delivers what the step before has held
        assert stopped == [True]
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ema.steps == 1
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_state_is_loaded_wholly_or_not_at_all():
    model = network()
    ema = EMA(model, decay=constant(0.5))
    ema.update()
    first = copy.deepcopy(ema.state_dict())
    nudge(model)
    ema.update()
    second = copy.deepcopy(ema.state_dict())

    def check(was_interrupted):
        state = ema.state_dict()
        wanted = first if state["steps"] == 1 else second
        assert same(state["shadow"], wanted["shadow"])
        ema.load_state_dict(second)

    assert interrupted_everywhere(lambda: ema.load_state_dict(first), check, 3) > 60


@pytest.mark.parametrize("averagers", [1, 2])
def test_averaged_puts_the_live_weights_back_on_any_way_out(averagers):
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    several = [SwitchEMA(model, decay=constant(0.5)) for _ in range(averagers)]
    nudge(model)
    for one in several:
        one.update()
    nudge(model)
    live, average = weights(model), several[0].averaged_state_dict()
    shown = []

    def call():
        with several[-1].averaged(), several[0].averaged():
            shown.append(same(weights(model), average))

    def check(was_interrupted):
        assert same(weights(model), live)
        assert same(several[0].averaged_state_dict(), average)
        assert not several[0]._stage.blocks
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    assert interrupted_everywhere(call, check) > 100
    assert all(shown)


def test_an_interrupt_that_was_held_back_arrives():
    reached = []
    with pytest.raises(KeyboardInterrupt), Uninterrupted():
        signal.raise_signal(signal.SIGINT)
        reached.append(True)
    assert reached == [True]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_inside_a_block_an_interrupt_arrives_at_once():
    ema = EMA(nn.Linear(1, 1))
    reached = []
    with pytest.raises(KeyboardInterrupt), ema.averaged():
        signal.raise_signal(signal.SIGINT)
        reached.append(True)
    assert reached == []


def test_blocks_that_are_not_left_in_order_leave_no_handler_behind():
    before = signal.getsignal(signal.SIGINT)
    first, second = Uninterrupted(), Uninterrupted()
    first.__enter__()
    second.__enter__()
    first.__exit__()
    second.__exit__()
    assert signal.getsignal(signal.SIGINT) is before
