"""The kernels in C against torch's, with any number of threads."""

import ctypes
from array import array

import pytest
import torch

from switch_ema.averaging.kernels import native, rounding, torch_ops
from tests.averaging.conftest import KINDS

DTYPES = [torch.float32, torch.float64] if "c" in KINDS else []
SIZES = [1, 63, 64, 65, 0, 1000, 40_000, 7, 16_384]
"""Rows that end within a thread's share and at its borders."""


def columns(count, dtype, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        [torch.randn(n, generator=generator, dtype=dtype) for n in SIZES]
        for _ in range(count)
    ]


def table(*members):
    return native.table_of(members, map(torch.Tensor.numel, members[0]))


@pytest.fixture(params=[1, 2, 3, 5])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("weight", [0.001, 0.4, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("dtype", DTYPES)
def test_lerp_is_torchs_and_exact_at_one(dtype, weight, threads):
    shadow, live = columns(2, dtype)
    wanted = torch._foreach_lerp(shadow, live, weight)
    native.lerp_(table(shadow, live), dtype, weight)
    for found, value, new in zip(shadow, wanted, live, strict=True):
        torch.testing.assert_close(found, value)
        assert weight < 1 or torch.equal(found, new)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_result_does_not_depend_on_the_threads(dtype):
    results = []
    for count in (1, 2, 7):
        shadow, live, gradient, mean, square = columns(5, dtype)
        square = [value.abs() for value in square]
        steps = [torch.tensor(5.0) for _ in SIZES]
        numbers = native.AdamNumbers(0.1, 0.9, 0.999, 1e-8, 0.1, 1.0, 0.01, 1)
        before = torch.get_num_threads()
        torch.set_num_threads(count)
        members = table(live, gradient, mean, square, shadow, steps)
        native.adam_(members, dtype, numbers)
        torch.set_num_threads(before)
        assert all(step == 6 for step in steps)
        results.append([torch.cat(c) for c in (live, mean, square, shadow)])
    for result in results[1:]:
        assert all(map(torch.equal, result, results[0]))


@pytest.mark.parametrize(
    "dtype", [*DTYPES, *([torch.int64, torch.bool] if DTYPES else [])]
)
def test_copy_and_exchange_move_every_byte(dtype, threads):
    first, second = (
        [(value * 9).to(dtype) for value in c] for c in columns(2, torch.float32)
    )
    kept = [value.clone() for value in first], [value.clone() for value in second]
    pairs = list(zip(first, second, strict=True))
    done = ctypes.c_int64(0)
    native.exchange_(torch_ops.byte_table(pairs), done)
    assert done.value == 1
    assert all(map(torch.equal, first, kept[1]))
    assert all(map(torch.equal, second, kept[0]))
    native.copy_(torch_ops.byte_table(pairs))
    assert all(map(torch.equal, first, kept[0]))
    assert all(map(torch.equal, second, kept[0]))


@pytest.mark.parametrize("offset", [0, 1, 37] if DTYPES else [])
def test_a_large_copy_moves_every_byte_and_no_other(offset, threads):
    """Large ones go past the caches, in whole vectors from where one can begin."""
    generator = torch.Generator().manual_seed(0)
    source = torch.randint(1, 256, (17 << 20,), generator=generator, dtype=torch.uint8)
    target = torch.zeros_like(source)
    ends = [offset, 500 + offset, 600, len(source) - 13]
    parts = [slice(ends[0], ends[1]), slice(ends[2], ends[3])]
    rows = [[one[part] for part in parts] for one in (target, source)]
    native.copy_(native.table_of(rows, map(len, rows[0])))
    wanted = torch.zeros_like(source)
    for part in parts:
        wanted[part] = source[part]
    assert torch.equal(target, wanted)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", DTYPES)
def test_first_non_finite_finds_one_value_anywhere(dtype, value, threads):
    (values,) = columns(1, dtype)
    values[5][:4] = torch.finfo(dtype).max
    assert native.first_non_finite(table(values), dtype) is None
    for row, at in ((8, 16_383), (6, 20_001), (6, 0), (3, 64), (0, 0)):
        values[row][at] = value
        assert native.first_non_finite(table(values), dtype) == row


@pytest.mark.parametrize("weight", [0.01, 1.0])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", DTYPES)
def test_lerp_notes_one_value_anywhere(dtype, value, weight, threads):
    for row, at in ((8, 16_383), (6, 20_001), (6, 0), (3, 64), (0, 0)):
        shadow, live = columns(2, dtype)
        assert native.lerp_(table(shadow, live), dtype, weight) == 1
        live[row][at] = value
        assert native.lerp_(table(shadow, live), dtype, weight) == 0


@pytest.mark.parametrize("weight", [0.01, 1.0] if DTYPES else [])
def test_widened_weights_are_cast_and_averaged(weight, threads):
    shadow, live = columns(2, torch.float32)
    live = [value.bfloat16() for value in live]
    wanted = torch._foreach_lerp(shadow, [value.float() for value in live], weight)
    rows = table(shadow, live)
    average = native.prepare("lerp_widened", torch.float32, rows)
    assert average(torch.get_num_threads(), weight) == 1
    for found, value in zip(shadow, wanted, strict=True):
        torch.testing.assert_close(found, value)
    live[6][20_001] = float("inf")
    assert average(torch.get_num_threads(), weight) == 0


@pytest.mark.parametrize(
    "live_dtype", [torch.float32, torch.bfloat16] if DTYPES else []
)
def test_dithered_rounding_is_torchs(live_dtype, threads):
    """Within one unit in the last place, since torch may fuse products and sums."""
    (live,) = columns(1, torch.float32)
    live = [value.to(live_dtype) for value in live]
    live[5][3] = float("nan")
    live[5][4] = float("inf")
    shadow = [torch.randn(n).bfloat16() for n in SIZES]
    wanted = [value.clone() for value in shadow]
    phases = rounding.rounding_phases(torch.device("cpu"))
    different = 0
    for step in range(20):
        rounding.lerp_dithered_(wanted, live, 0.1, step)
        offset = rounding.rounding_offset(step)
        native.lerp_dithered_(table(shadow, live), live_dtype, 0.1, phases, offset)
        for found, value in zip(shadow, wanted, strict=True):
            torch.testing.assert_close(
                found, value, rtol=1 / 64, atol=0.02, equal_nan=True
            )
            different += int((found != value).sum())
        assert shadow[5][3].isnan()
        assert step > 0 or shadow[5][4].isinf()
    assert different < 0.02 * 20 * sum(SIZES)


@pytest.mark.parametrize("dtype", DTYPES)
def test_fetching_lines_needs_no_address_to_be_one(dtype):
    (tensors,) = columns(1, dtype)
    lines = native.lines_of(tensors)
    assert {id(tensor) // 64 * 64 for tensor in tensors} <= set(lines)
    assert all(line % 64 == 0 for line in lines)
    del tensors
    native.prepare("fetch", dtype, lines)(1)
    wild = array("q", [0, -64, 2**62])
    native.prepare("fetch", dtype, wild)(1)
