"""Numbers of double precision rounded once; headers checked as the library does."""

import random
import subprocess
import sys
from fractions import Fraction

import pytest
import torch

from switch_ema import merge_checkpoints, uniform_soup
from switch_ema.averaging.offline.streams import read_header, round_once

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


def headers(entry):
    """Headers of a file with 8 bytes of data, whole and damaged."""
    other = entry.replace("[0,8]", "[8,8]").replace("[2]", "[0]")
    yield "{}"
    yield f'{{"w":{entry}}}'
    yield f'{{"w":{entry}}}    '
    yield f' {{"w":{entry}}}'
    yield f'{{"w":{entry},"v":{other}}}'
    yield f'{{"w":{entry},"v":{entry}}}'
    for metadata in ('{"a":"b"}', "{}", "null", '{"a":1}', "[]", '"a"', "1"):
        yield f'{{"__metadata__":{metadata},"w":{entry}}}'
    yield f'{{"w":{"[" * 100_000}}}'
    for bad in ("F33", "", "f32"):
        yield f'{{"w":{entry.replace("F32", bad)}}}'
    shapes = ("[]", "[1]", "[3]", "[2,1]", "[1,2,1]", "[-2]", "[2.0]", "[true,2]")
    huge = ("[4611686018427387904,4611686018427387904,0]", "2", "null", '["2"]')
    for bad in (*shapes, *huge):
        yield f'{{"w":{entry.replace("[2]", bad)}}}'
    for bad in ("[0,4]", "[4,8]", "[8,0]", "[0,16]", "[-8,0]", "[0]", "[0,4,8]", "0"):
        yield f'{{"w":{entry.replace("[0,8]", bad)}}}'
    for cut in range(0, len(entry), 3):
        yield f'{{"w":{entry[:cut]}'


def test_headers_are_accepted_and_refused_as_by_the_library(tmp_path):
    path = tmp_path / "c.safetensors"
    entry = '{"dtype":"F32","shape":[2],"data_offsets":[0,8]}'
    whole = f'{{"w":{entry}}}'.encode()
    raws = [len(h).to_bytes(8, "little") + h.encode() for h in headers(entry)]
    raws = [raw + bytes(8) for raw in raws]
    start = len(whole).to_bytes(8, "little")
    raws += [b"", start, start + whole, start + whole + bytes(7)]
    raws += [start + whole + bytes(9), b"\xff" * 8 + whole + bytes(8)]
    generator = random.Random(0)
    for _ in range(300):
        raw = bytearray(start + whole + bytes(8))
        for _ in range(generator.randint(1, 2)):
            raw[generator.randrange(len(raw))] = generator.randrange(256)
        raws.append(bytes(raw))
    accepted = 0
    for raw in raws:
        path.write_bytes(raw)
        try:
            with files.safe_open(path, framework="pt") as opened:
                names = list(opened.keys())
                expected = {n: opened.get_slice(n).get_shape() for n in names}
        except Exception:
            with pytest.raises(ValueError, match="is not a whole safetensors file: "):
                read_header(path)
            continue
        header = read_header(path)
        found = {name: list(t.info.shape) for name, t in header.tensors.items()}
        assert found == expected
        accepted += 1
    assert 20 < accepted < len(raws) - 200
    twice = whole[:-1] + b"," + whole[1:]  # the library takes one of them
    path.write_bytes(len(twice).to_bytes(8, "little") + twice + bytes(8))
    with pytest.raises(ValueError, match="a name occurs twice"):
        read_header(path)


def test_a_merge_needs_no_library(tmp_path):
    for number in range(2):
        file = tmp_path / f"{number}.safetensors"
        files.save_file({"w": torch.full((3,), float(number))}, file)
    code = """
import sys
sys.modules |= dict.fromkeys(("numpy", "safetensors"))
import switch_ema
for out in ("m.safetensors", "m"):
    switch_ema.merge_checkpoints(["0.safetensors", "1.safetensors"], out)
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)
    for out in ("m.safetensors", "m/1.safetensors"):
        assert files.load_file(tmp_path / out)["w"].tolist() == [0.5] * 3
