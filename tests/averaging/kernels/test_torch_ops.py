"""The kernels against plain arithmetic, and exchange against interruptions."""

import pytest
import torch

from switch_ema.averaging.kernels import native, torch_ops
from switch_ema.averaging.view.exchange import Exchanged, exchange_

pytestmark = pytest.mark.usefixtures("arithmetic")


def pairs(count=5, dtype=torch.float32):
    shapes = [(), (3,), (4, 5), (2, 3, 4), (torch_ops.CHUNK + 7,)][:count]
    return [
        [torch.randn(shape, dtype=torch.float64).to(dtype) for shape in shapes]
        for _ in range(2)
    ]


def expected(shadow, live, weight):
    return [
        s.double() + weight * (x.double() - s.double())
        for s, x in zip(shadow, live, strict=True)
    ]


@pytest.mark.parametrize("weight", [0.001, 0.5, 0.9, 1.0])
def test_lerp_and_lerp_cast(weight):
    shadow, live = pairs()
    wanted = expected(shadow, live, weight)
    cast = [t.clone() for t in shadow]
    torch_ops.lerp_(shadow, live, weight)
    torch_ops.lerp_cast_(cast, [t.double() for t in live], weight)
    for result in (shadow, cast):
        for tensor, exact in zip(result, wanted, strict=True):
            torch.testing.assert_close(tensor.double(), exact, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("weight", [0.0001, 0.01, 0.499, 0.5, 1.0])
def test_lerp_by_memory_is_lerp(dtype, weight):
    shadow, live = pairs(dtype=dtype)
    plain = [tensor.clone() for tensor in shadow]
    torch_ops.lerp_(plain, live, weight)
    torch_ops.lerp_dense_(shadow, live, weight)
    for dense, tensor in zip(shadow, plain, strict=True):
        torch.testing.assert_close(dense, tensor, rtol=1e-6, atol=1e-7)


def test_dithered_lerp_is_within_one_unit_and_unbiased_over_steps():
    start = torch.full((1000,), 1.0, dtype=torch.bfloat16)
    live = torch.full((1000,), 1.1)
    total = torch.zeros(1000)
    steps = 512
    for step in range(steps):
        shadow = start.clone()
        torch_ops.lerp_dithered_([shadow], [live], 0.01, step)
        assert set(shadow.unique().tolist()) <= {1.0, 1.0078125}  # neighbours of 1.001
        total += shadow.float()
    # Each element on its own averages to 1.001, which bfloat16 cannot hold.
    torch.testing.assert_close(
        total / steps, torch.full((1000,), 1.001), rtol=0, atol=5e-5
    )


@pytest.mark.parametrize("bits", [0x7FFFFFFF, 0x7FC00000, 0x7F800000, -0x800000])
def test_dithering_keeps_what_is_not_finite(bits):
    """The largest NaN (CUDA's), the usual one, and both infinities."""
    broken = torch.tensor([bits], dtype=torch.int32).view(torch.float32)
    for step in range(50):
        exact = torch.cat([broken, torch.ones(1)])
        thresholds = torch_ops.rounding_thresholds(exact.device, step)
        rounded = torch_ops.round_to_bfloat16_(exact, thresholds).bfloat16()
        assert not rounded[0].isfinite()
        assert rounded[1] == 1


def test_mean():
    first, second = pairs()
    target = [torch.empty_like(t) for t in first]
    torch_ops.mean_(target, [first, second])
    for t, a, b in zip(target, first, second, strict=True):
        torch.testing.assert_close(t, (a + b) / 2)


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


def test_first_non_finite_finds_it_and_survives_overflowing_sums():
    huge = torch.full((4,), 3e38)
    assert torch_ops.first_non_finite([huge, torch.ones(3)]) is None
    broken = torch.tensor([1.0, float("nan")])
    assert torch_ops.first_non_finite([huge, torch.ones(3), broken]) == 2
    assert torch_ops.first_non_finite([]) is None
    assert torch_ops.first_non_finite([torch.tensor([1 + 1j, complex("inf")])]) == 0
