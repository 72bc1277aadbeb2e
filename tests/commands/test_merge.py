"""`switch-ema merge`: the weights it prints, and its sentences."""

import os
import pickle

import pytest
import torch
from safetensors.torch import load_file, save_file


@pytest.fixture
def steps(tmp_path):
    paths = [tmp_path / f"step-{n}.safetensors" for n in (20, 100, 300)]
    for value, path in enumerate(paths):
        save_file({"w": torch.full((2,), float(value))}, path)
    return paths


def test_a_decay_is_merged_and_printed(call, steps, tmp_path):
    arguments = ("--out", "m.safetensors", "--decay", 0.75, 0.25)
    code, out, _ = call("merge", *steps, *arguments)
    assert code == 0
    assert load_file(tmp_path / "m.safetensors")["w"].tolist() == [1.0, 1.0]
    assert [line.split("│")[2].strip() for line in out.splitlines() if "step" in line]
    assert "0.25" in out and "0.5" in out
    assert "Record: m.merge.json" in out


@pytest.mark.parametrize("profile", ["mean", "linear", "minus-sqrt", "cosine", "power"])
def test_profiles(profile, call, steps, tmp_path):
    code, _, _ = call("merge", *steps, "--out", "m.safetensors", "--profile", profile)
    assert code == 0
    value = load_file(tmp_path / "m.safetensors")["w"][0].item()
    middle = 1 - {"minus-sqrt": 0.4, "power": -0.9}.get(profile, 0)
    assert value == pytest.approx(middle, abs=0.1)


def test_torch_files_and_values_that_are_not_finite(call, steps, tmp_path):
    code, out, _ = call("merge", *steps, "--out", "m.pt")
    assert code == 0 and "Merged: m.pt" in out
    assert torch.load("m.pt", weights_only=True)["w"].tolist() == [1.0, 1.0]
    code, _, err = call("merge", *steps, "--out", "m.bin")
    assert code == 2 and "out must end in .safetensors, .pt or .pth for a file" in err
    bad = tmp_path / "step-400.safetensors"
    save_file({"w": torch.tensor([1.0, float("nan")])}, bad)
    code, _, err = call("merge", *steps, bad, "--out", "n.pt")
    assert code == 2 and "step-400.safetensors has NaN or infinite values in w;" in err
    code, _, _ = call("merge", *steps, bad, "--out", "n.pt", "--allow-non-finite")
    assert code == 0 and torch.load("n.pt")["w"][0] == 1


def test_mistakes_are_one_sentence(call, steps, tmp_path):
    other = tmp_path / "other.safetensors"
    save_file({"w": torch.zeros(3)}, other)
    short, pickled = tmp_path / "short.safetensors", tmp_path / "pickled.bin"
    short.write_bytes(steps[0].read_bytes()[:-4])
    pickled.write_bytes(pickle.dumps({"w": [0.0, 0.0]}))
    strangers = {
        "missing: w. unexpected: v": {"v": torch.zeros(2)},
        "w is torch.float16, expected torch.float32": {
            "w": torch.zeros(2, dtype=torch.float16)
        },
    }
    cases = {}
    for number, (sentence, tensors) in enumerate(strangers.items()):
        path = tmp_path / f"stranger-{number}.safetensors"
        save_file(tensors, path)
        cases[sentence] = [*steps, path]
    hostile = tmp_path / "hostile"
    hostile.mkdir()
    (hostile / ".metadata").write_bytes(b"cos\nsystem\n(X\x02\0\0\0lstR.")
    os.mkfifo(tmp_path / "pipe")
    cases |= {
        "it would import os.system": [*steps, hostile],
        "pipe is not a regular file": [*steps, tmp_path / "pipe"],
        "their numbers are not increasing": [*steps[::-1], "--profile", "cosine"],
        "at least 2 checkpoints": steps[:1],
        "takes 2 numbers for 3 checkpoints, got 1": [*steps, "--decay", 0.5],
        "--decay replaces --profile": [*steps, "--decay", 1, 0.5, "--profile", "power"],
        "sigma_rel must be in": [*steps, "--profile", "power", "--sigma-rel", 2],
        "w is [3], expected [2]": [*steps, other],
        "short.safetensors is not a whole safetensors file": [*steps, short],
        "pickled.bin is neither a safetensors file nor": [*steps, pickled],
        "No such file": [*steps, tmp_path / "absent.safetensors"],
    }
    for sentence, arguments in cases.items():
        code, out, err = call("merge", *arguments, "--out", "m.safetensors")
        assert code == 2 and sentence in err and "Traceback" not in err
        assert out == ""
        assert not list(tmp_path.glob("m.*"))
    code, _, err = call("merge", *steps, "--out", steps[0])
    assert code == 2 and "already exists" in err
