"""`switch-ema inspect`, `extract` and `doctor`: output, errors and exit codes."""

import json
import pickle

import pytest
import torch
from safetensors.torch import load_file, save_file

from switch_ema import EMA
from tests.doctor.averages import Case, Loop
from tests.doctor.libraries import WRITERS, network


def test_inspect_tells_live_weights_from_the_average(call, tmp_path):
    written = WRITERS["timm"](tmp_path)
    code, out, _ = call("inspect", written.path)
    assert code == 0
    assert "timm, torch.save" in out
    assert "average" in out and "state_dict_ema" in out and "live" in out
    assert "not loaded: argparse.Namespace" in " ".join(out.split())


def test_a_card_from_our_own_file(call, tmp_path):
    ema = EMA(network(), decay=0.9)
    ema.update()
    ema.save_averaged(tmp_path / "ema.safetensors")
    code, out, _ = call("inspect", tmp_path / "ema.safetensors", "--card")
    assert code == 0
    text = " ".join(out.split())
    assert "are an exponential moving average (EMA) of the weights" in text
    assert "covers 1 steps" in text or "1 steps" in text
    save_file({"w": torch.ones(2)}, tmp_path / "plain.safetensors")
    code, out, _ = call("inspect", tmp_path / "plain.safetensors", "--card")
    assert code == 0 and "does not say whether" in out


def test_extract_writes_what_the_model_loads(call, tmp_path):
    written = WRITERS["DiT"](tmp_path)
    code, out, _ = call("extract", written.path, "--to", "ema.safetensors")
    assert code == 0 and "Extracted: ema.safetensors" in out
    found = load_file(tmp_path / "ema.safetensors")
    assert torch.equal(found["0.weight"], written.average["0.weight"])
    code, _, err = call("extract", written.path, "--to", "ema.safetensors")
    assert code == 2 and "already exists" in err
    code, _, err = call(
        "extract", tmp_path / "ema.safetensors", "--what", "live", "--to", "x"
    )
    assert code == 2 and "has no live weights; it has average" in err


def test_the_doctor_names_the_fault_and_sets_the_exit_code(call, tmp_path):
    healthy = Case(Loop, 0, tmp_path).run()
    code, out, _ = call("doctor", *healthy)
    assert code == 0 and "No findings" in out and "Decay in force: 0.9" in out
    (tmp_path / "frozen").mkdir()
    frozen = Case(
        Loop, 0, tmp_path / "frozen", before_update=lambda case, step: False
    ).run()
    code, out, _ = call("doctor", *frozen)
    assert code == 1
    assert "frozen: " in out and "Likely cause:" in out and "Fix:" in out
    code, out, _ = call("doctor", healthy[0], healthy[0])
    assert code == 2 and "did not move" in out
    code, _, err = call("doctor", healthy[0])
    assert code == 2 and "at least 2 checkpoints" in err


@pytest.mark.parametrize("command", ["inspect", "extract", "doctor"])
def test_hostile_files_get_one_sentence(command, call, tmp_path):
    class Attack:
        def __reduce__(self):
            return (type(tmp_path).touch, (tmp_path / "executed",))

    def header(text, data=b""):
        return len(text).to_bytes(8, "little") + text + data

    entry = b'"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}'
    files = {
        "raw.pkl": pickle.dumps(Attack()),
        "empty.pt": b"",
        "zip.pt": b"PK\3\4",
        "text.pt": b"hello\n",
        "truncated.safetensors": header(b"{" + entry + b"}", bytes(7)),
        "metadata.safetensors": header(
            b'{"__metadata__":[1],' + entry + b"}", bytes(8)
        ),
        "huge.safetensors": b"\xff" * 8 + b"{}",
        "model.keras": b"PK\3\4",
        "model.weights.h5": b"\x89HDF\r\n\x1a\n",
    }
    torch.save({"model": {"w": torch.ones(2)}, "x": Attack()}, tmp_path / "zipped.pt")
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    folders = ("index", "link", "pickled", "nothing")
    for name in folders:
        (tmp_path / name).mkdir()
    save_file({"w": torch.ones(2)}, tmp_path / "outside.safetensors")
    index = {"weight_map": {"w": "../outside.safetensors"}}
    text = json.dumps(index)
    (tmp_path / "index" / "model.safetensors.index.json").write_text(text)
    link = tmp_path / "link" / "model.safetensors"
    link.symlink_to(tmp_path / "outside.safetensors")
    (tmp_path / "pickled" / ".metadata").write_bytes(pickle.dumps(Attack()))
    before = {path.name for path in tmp_path.iterdir()}
    for name in (*files, *folders, "zipped.pt", "missing.pt"):
        more = ("--to", "out.safetensors") if command == "extract" else ()
        twice = (tmp_path / name,) if command == "doctor" else ()
        code, _, err = call(command, tmp_path / name, *twice, *more)
        assert code == 2, name
        assert len(err.strip().splitlines()) == 1, err
        assert "Traceback" not in err
    assert {path.name for path in tmp_path.iterdir()} == before
