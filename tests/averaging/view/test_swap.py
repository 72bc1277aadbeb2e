"""The way into a model and out of it, whatever happens on the way."""

import warnings

import pytest
import torch
from torch import nn

from switch_ema import EMA, constant
from switch_ema.averaging.view import swap
from switch_ema.averaging.view.stage import stage_of
from tests.averaging.helpers import assert_same, copy_of, network

pytestmark = pytest.mark.usefixtures("arithmetic")


KINDS = {
    "exact": (torch.float32, None),
    "parked": (torch.bfloat16, None),
    "halves": (torch.float32, torch.bfloat16),
}


@pytest.fixture(params=KINDS)
def shadowed(request):
    """A model that has left its average, with copies of both."""
    dtype, kept = KINDS[request.param]
    model = network(dtype=dtype)
    ema = EMA(model, decay=constant(0.5), dtype=kept)
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


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_a_parameter_that_goes_inside_the_block_is_named_and_the_rest_put_back(dtype):
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    ema = EMA(model, decay=constant(0.5), dtype=dtype)
    for parameter in model.parameters():
        parameter.data += 1
    ema.update()
    live = model[1].weight.detach().clone()
    gone = pytest.raises(RuntimeError, match=r"0\.bias was removed")
    with gone, ema.averaged():
        model[0].bias = None
    assert torch.equal(model[1].weight, live)
    ema.refresh()
    ema.update()


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
@pytest.mark.parametrize("other", [torch.zeros(3, 2), torch.zeros(2, 2).to_sparse()])
def test_a_parameter_that_is_replaced_inside_the_block_is_named(other, dtype):
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    ema = EMA(model, decay=constant(0.5), dtype=dtype)
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


class Rounded(nn.Module):
    """Numbers of every kind, whose average is kept in bfloat16."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        bits = torch.randint(-(2**31), 2**31, (3, 1001), generator=generator)
        self.odd = nn.Parameter(bits.to(torch.int32).view(torch.float32))
        self.weight = nn.Parameter(torch.randn(70_000, generator=generator))
        self.empty = nn.Parameter(torch.zeros(0))


def bits_of(tensors):
    return {name: t.detach().clone().view(torch.int32) for name, t in tensors.items()}


@pytest.fixture
def rounded():
    model = Rounded()
    ema = EMA(model, decay=constant(0.5), dtype=torch.bfloat16)
    model.odd.data.copy_(model.odd.data.flip(0))
    model.weight.data += torch.randn(70_000, generator=torch.manual_seed(1))
    ema.update()
    return model, ema, bits_of(model.state_dict()), copy_of(ema.averaged_tensors())


def test_weights_that_are_kept_by_halves_come_back_bit_for_bit(rounded):
    model, ema, live, average = rounded
    for _ in range(2):
        with ema.averaged():
            for name, tensor in model.named_parameters():
                wanted = average[name].float()
                assert torch.equal(tensor.nan_to_num(), wanted.nan_to_num())
            inside = ema.averaged_tensors()
            assert all(tensor.dtype == torch.bfloat16 for tensor in inside.values())
            assert torch.equal(inside["weight"], average["weight"])
            assert_same(bits_of(ema.live_tensors()), live)
            with ema._stage.showing(None):
                assert_same(bits_of(model.state_dict()), live)
        assert_same(bits_of(model.state_dict()), live)
        after = ema.averaged_tensors()
        assert torch.equal(after["weight"], average["weight"])
        assert torch.equal(after["odd"].nan_to_num(), average["odd"].nan_to_num())
        assert torch.equal(after["odd"].isnan(), average["odd"].isnan())


def test_what_is_done_to_such_an_average_in_the_block_is_rounded_and_kept(rounded):
    model, ema, live, _ = rounded
    odd = [1.00390625, 1.01171875, 3.4e38, float("inf"), float("-inf"), float("nan")]
    with ema.averaged(), torch.no_grad():
        model.weight[:6] = torch.tensor(odd)
        model.weight[6] = torch.tensor(0x7F800001, dtype=torch.int32).view(torch.float)
    wanted = torch.tensor([*odd, float("nan")]).bfloat16()
    found = ema.averaged_tensors()["weight"][:7]
    torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)
    assert_same(bits_of(model.state_dict()), live)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_such_weights_come_back_where_a_part_was_moved_in_the_block(rounded, dtype):
    model, ema, live, average = rounded
    message = "cast or moved" if dtype != torch.float32 else ""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=f".*{message}")
        with ema.averaged():
            model.weight.data = model.weight.data.to(dtype, copy=True)
    assert_same(bits_of(model.state_dict()), live)
    assert torch.equal(ema.averaged_tensors()["weight"], average["weight"])
    ema.update()


def test_half_of_a_copy_is_kept_beside_a_bfloat16_average(arithmetic):
    """With the kernels in C; torch's keep the weights whole."""
    model = nn.Linear(256, 256, bias=False)
    ema = EMA(model, dtype=torch.bfloat16)
    with ema.averaged():
        (halves,) = [kept for _, kept in ema._shadow._swap._halves] or [None]
        if arithmetic == "c":
            assert sum(part.nbytes for part in halves._lower) == model.weight.nbytes / 2
            assert not ema._shadow._swap.parked
        else:
            assert halves is None
