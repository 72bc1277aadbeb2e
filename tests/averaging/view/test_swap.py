"""The way into a model and out of it, whatever happens on the way."""

import pytest
import torch
from torch import nn

from switch_ema import EMA, constant
from switch_ema.averaging.view import swap
from switch_ema.averaging.view.stage import stage_of
from tests.averaging.helpers import assert_same, copy_of, network

pytestmark = pytest.mark.usefixtures("arithmetic")


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=["exact", "parked"])
def shadowed(request):
    """A model that has left its average, with copies of both."""
    model = network(dtype=request.param)
    ema = EMA(model, decay=constant(0.5))
    for parameter in model.parameters():
        parameter.data += 1
    ema.update()
    return model, ema, copy_of(model.state_dict()), ema.averaged_state_dict()


class Interrupting:
    """A function during which Ctrl-C is pressed once: before, or when it is done."""

    def __init__(self, call, nth: int, is_late: bool) -> None:
        self._call, self._left, self._is_late = call, nth, is_late

    def __call__(self, *arguments):
        self._left -= 1
        if self._left == 0 and not self._is_late:
            raise KeyboardInterrupt
        result = self._call(*arguments)
        if self._left == 0:
            raise KeyboardInterrupt
        return result


@pytest.mark.parametrize("is_late", [False, True], ids=["early", "late"])
@pytest.mark.parametrize("nth", [1, 2], ids=["entering", "leaving"])
def test_an_interrupted_exchange_leaves_the_live_weights(
    shadowed, monkeypatch, nth, is_late
):
    interrupting = Interrupting(swap.exchange_, nth, is_late)
    monkeypatch.setattr(swap, "exchange_", interrupting)
    assert_live_after_interruption(*shadowed)


@pytest.mark.parametrize("is_late", [False, True], ids=["early", "late"])
@pytest.mark.parametrize("name", ["enter", "leave"])
def test_an_interrupted_swap_leaves_the_live_weights(
    shadowed, monkeypatch, name, is_late
):
    interrupting = Interrupting(getattr(swap.Swap, name), 1, is_late)
    monkeypatch.setattr(swap.Swap, name, lambda self: interrupting(self))
    assert_live_after_interruption(*shadowed)


def assert_live_after_interruption(model, ema, live, average):
    with pytest.raises(KeyboardInterrupt), ema.averaged():
        assert_same(model.state_dict(), average)
    assert not stage_of(model).blocks
    assert not ema._shadow.swapped
    assert_same(model.state_dict(), live)
    assert_same(ema.averaged_state_dict(), average)


def test_an_interrupted_inner_block_gives_the_outer_one_its_turn(shadowed, monkeypatch):
    model, ema, live, _ = shadowed
    other = EMA(model, decay=constant(0.9))
    interrupting = Interrupting(swap.Swap.leave, 2, is_late=True)
    monkeypatch.setattr(swap.Swap, "leave", lambda self: interrupting(self))
    with pytest.raises(KeyboardInterrupt), ema.averaged(), other.averaged():
        pass
    assert_same(model.state_dict(), live)


def test_phases_are_repeated_until_they_are_done_and_errors_are_not():
    calls = []

    def phase():
        calls.append("phase")
        if len(calls) < 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        swap.insist(phase, lambda: calls.append("next"))
    assert calls == ["phase", "phase", "phase", "next"]
    with pytest.raises(ZeroDivisionError):
        swap.insist(lambda: 1 // 0)


def test_a_parameter_that_goes_inside_the_block_is_named_and_the_rest_put_back():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    ema = EMA(model, decay=constant(0.5))
    for parameter in model.parameters():
        parameter.data += 1
    ema.update()
    live = model[1].weight.detach().clone()
    gone = pytest.raises(RuntimeError, match=r"0\.bias went out of the model")
    with gone, ema.averaged():
        model[0].bias = None
    assert torch.equal(model[1].weight, live)
    ema.refresh()
    ema.update()


@pytest.mark.parametrize("other", [torch.zeros(3, 2), torch.zeros(2, 2).to_sparse()])
def test_a_parameter_that_is_replaced_inside_the_block_is_named(other):
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    ema = EMA(model, decay=constant(0.5))
    for parameter in model.parameters():
        parameter.data += 1
    ema.update()
    live = model[1].weight.detach().clone()
    replaced = pytest.raises(RuntimeError, match=r"0\.weight was replaced inside")
    with replaced, ema.averaged():
        model[0].weight = nn.Parameter(other)
    assert torch.equal(model[1].weight, live)
    ema.refresh()
    ema.update()


def test_autocast_does_not_answer_for_the_average_with_the_live_weights():
    model = nn.Linear(4, 1, bias=False)
    ema = EMA(model, decay=constant(0.5))
    nn.init.constant_(model.weight, 1.0)
    ema.reset()
    nn.init.constant_(model.weight, 3.0)
    ema.update()
    x = torch.ones(1, 4)
    with torch.autocast("cpu", torch.bfloat16):
        before = model(x).item()
        with ema.averaged():
            inside = model(x).item()
        after = model(x).item()
    assert (before, inside, after) == (12.0, 8.0, 12.0)
