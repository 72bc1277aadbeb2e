"""Ctrl-C at any moment: updates, loads and averaged() are whole or did not happen."""

import copy
import signal

import pytest
from torch import nn

from switch_ema import EMA, SwitchEMA, constant
from switch_ema.averaging._signals import Uninterrupted
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
