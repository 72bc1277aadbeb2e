"""Numbers of double precision rounded once."""

from fractions import Fraction

import pytest
import torch

from switch_ema import merge_checkpoints, uniform_soup
from switch_ema.averaging.offline.streams import round_once

files = pytest.importorskip("safetensors.torch")

NARROW = [torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2]


def neighbours(dtype):
    """Return numbers from 2^-126 on, where float32 has all its bits, and the next."""
    kind = torch.int16 if dtype.itemsize == 2 else torch.int8
    largest = int(torch.tensor(torch.finfo(dtype).max).to(dtype).view(kind))
    smallest = int(torch.tensor(2.0**-126).to(dtype).view(kind))
    bits = torch.arange(smallest, largest, max(1, largest // 3000)).to(kind)
    return bits.view(dtype).double(), (bits + 1).view(dtype).double()


def nearest(value, low, high, is_low_even):
    """Round with fractions; what is halfway goes to the even neighbour."""
    below, above = Fraction(value) - Fraction(low), Fraction(high) - Fraction(value)
    if below == above:
        return low if is_low_even else high
    return low if below < above else high


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_what_is_next_to_halfway_goes_to_the_nearest(dtype):
    low, high = neighbours(dtype)
    middle = (low + high) / 2
    shifts = (0.0, 2.0**-40, -(2.0**-40), 2.0**-50, -(2.0**-50), 0.3, -0.3)
    kind = torch.int16 if dtype.itemsize == 2 else torch.int8
    is_even = ((low.to(dtype).view(kind) & 1) == 0).tolist()
    for shift in shifts:
        exact = (
            middle * (1 + shift)
            if abs(shift) < 0.1
            else low + (0.5 + shift) * (high - low)
        )
        found = round_once(exact, out=torch.empty(len(low), dtype=dtype)).double()
        expected = map(nearest, exact.tolist(), low.tolist(), high.tolist(), is_even)
        assert found.tolist() == list(expected)
        negative = round_once(-exact, out=torch.empty(len(low), dtype=dtype))
        assert torch.equal(negative.double(), -found)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_values_that_are_not_finite_and_too_large(dtype):
    inf, nan = float("inf"), float("nan")
    values = [inf, -inf, 1e300, -1e300, 1e-300, -1e-300, nan]
    exact = torch.tensor(values, dtype=torch.float64)
    found = round_once(exact, out=torch.empty(7, dtype=dtype)).tolist()
    assert found[:6] == [inf, -inf, inf, -inf, 0.0, -0.0] and found[6] != found[6]


def test_a_merge_and_a_soup_round_once(tmp_path):
    """What is above halfway by less than float32 can tell goes up."""
    low, high = 1.0, 1 + 2.0**-7
    first = {"w": torch.tensor([low], dtype=torch.bfloat16)}
    exact = {"w": torch.tensor([high + 2.0**-40], dtype=torch.float64)}
    assert uniform_soup([first, exact])["w"].item() == high
    second = {"w": torch.tensor([high], dtype=torch.bfloat16)}
    paths = [tmp_path / "0.safetensors", tmp_path / "1.safetensors"]
    for path, state in zip(paths, (first, second), strict=True):
        files.save_file(state, path)
    for shift, expected in ((1e-12, high), (-1e-12, low)):
        out = tmp_path / f"{expected}.safetensors"
        merge_checkpoints(paths, out, [0.5 - shift, 0.5 + shift])
        assert files.load_file(out)["w"].item() == expected
