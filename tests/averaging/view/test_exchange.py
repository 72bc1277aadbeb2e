"""Exchanging tensors: every layout, and completely or not at all."""

import pytest
import torch

from switch_ema.averaging.kernels import native
from switch_ema.averaging.view.exchange import Exchanged, exchange_
from tests.averaging.kernels.test_torch_ops import pairs

pytestmark = pytest.mark.usefixtures("arithmetic")


def layouts():
    big = torch.randn(700, 800)
    return {
        "contiguous": big,
        "transposed": big.t(),
        "channels_last": torch.randn(4, 8, 160, 160).to(
            memory_format=torch.channels_last
        ),
        "gaps": torch.randn(1400, 800)[::2],
        "0-dim": torch.tensor(3.0),
        "empty": torch.empty(0, 2),
        "complex": torch.randn(5, dtype=torch.complex64),
        "bool": torch.tensor([True, False, True]),
    }


@pytest.mark.parametrize("layout", layouts())
def test_exchange_swaps_every_layout(layout):
    first = layouts()[layout]
    second = torch.zeros(first.shape, dtype=first.dtype)  # contiguous
    a, b = first.clone(), second.clone()
    exchange_([first], [second], Exchanged())
    assert torch.equal(first, b)
    assert torch.equal(second, a)


class Interrupt(Exception):
    pass


@pytest.mark.parametrize("fails_at", range(0, 14))
@pytest.mark.parametrize("before", [True, False])
def test_an_interrupted_exchange_is_undone(
    without_compiler, monkeypatch, fails_at, before
):
    """Whichever copy is cut short, Ctrl-C included, both sides are as before."""
    first, second = ([t + i for t in pairs(4)[0]] for i in (0, 10))
    kept = [t.clone() for t in first], [t.clone() for t in second]
    calls = 0
    copy_ = torch.Tensor.copy_

    def interrupted(self, other, *args):
        nonlocal calls
        calls += 1
        if before and calls == fails_at + 1:
            raise Interrupt
        result = copy_(self, other, *args)
        if calls == fails_at + 1:
            raise Interrupt
        return result

    monkeypatch.setattr(torch.Tensor, "copy_", interrupted)
    if fails_at < 12:
        with pytest.raises(Interrupt):
            exchange_(first, second, Exchanged())
    else:  # twelve copies in all: nothing was interrupted
        exchange_(first, second, Exchanged())
        kept = kept[1], kept[0]
    monkeypatch.undo()
    for tensors, old in zip((first, second), kept, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(tensors, old, strict=True))


@pytest.mark.parametrize("is_done", [True, False])
def test_an_exchange_in_c_is_undone_if_it_has_happened(monkeypatch, is_done):
    first, second = ([t + i for t in pairs(4)[0]] for i in (0, 10))
    # One pair by memory and one that is not: of another order.
    first.append(torch.randn(3, 4))
    second.append(torch.randn(4, 3).t())
    kept = [t.clone() for t in first], [t.clone() for t in second]
    calls = 0
    at_once = native.exchange_

    def interrupted(table, done):
        nonlocal calls
        calls += 1
        if calls > 1 or is_done:
            at_once(table, done)
        if calls == 1:
            raise Interrupt

    monkeypatch.setattr(native, "exchange_", interrupted)
    if native.is_available():
        with pytest.raises(Interrupt):
            exchange_(first, second, Exchanged())
        assert calls == 1 + is_done
    for tensors, old in zip((first, second), kept, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(tensors, old, strict=True))
