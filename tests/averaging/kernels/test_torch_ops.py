"""The kernels against plain arithmetic."""

import pytest
import torch

from switch_ema.averaging.kernels import torch_ops

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


def test_mean():
    first, second = pairs()
    target = [torch.empty_like(t) for t in first]
    torch_ops.mean_(target, [first, second])
    for t, a, b in zip(target, first, second, strict=True):
        torch.testing.assert_close(t, (a + b) / 2)


def test_first_non_finite_finds_it_and_survives_overflowing_sums():
    huge = torch.full((4,), 3e38)
    assert torch_ops.first_non_finite([huge, torch.ones(3)]) is None
    broken = torch.tensor([1.0, float("nan")])
    assert torch_ops.first_non_finite([huge, torch.ones(3), broken]) == 2
    assert torch_ops.first_non_finite([]) is None
    assert torch_ops.first_non_finite([torch.tensor([1 + 1j, complex("inf")])]) == 0
