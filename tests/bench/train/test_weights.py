"""Kept weights: what is in the files, and that a model loads and evaluates them."""

import json
from contextlib import closing

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from switch_ema import __version__
from switch_ema.averaging.offline.provenance import without_prefix
from switch_ema.bench.compare import run_comparison
from switch_ema.bench.errors import UsageError
from switch_ema.bench.execute.options import RunOptions
from switch_ema.bench.loading import create_task
from switch_ema.bench.plan.cells import make_plan
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.results.folder import open_run
from switch_ema.bench.results.kept_weights import evaluate_kept, load_kept
from switch_ema.bench.train.checkpoints import checkpoint_path, read
from switch_ema.bench.train.weights import weights_path

METHODS = ("plain", "ema:decay=0.9", "switch-ema:decay=0.8")


def compare(tasks, out, keep="last", **settings):
    config = CompareConfig(
        **{"tasks": tasks, "methods": METHODS, "seeds": 2, **settings}
    )
    options = RunOptions(
        out=out, name="run", executor="inline", device="cpu", keep=keep
    )
    done = run_comparison(config, options)
    assert done.error is None
    return done.folder, make_plan(config)


def header(path):
    with safe_open(path, framework="pt") as file:
        assert file.metadata()["format"] == "pt"  # for loaders of other libraries
        return without_prefix(file.metadata())


def test_files_have_the_final_weights_and_their_provenance(tiny, tmp_path):
    folder, cells = compare((tiny,), tmp_path)
    names = {
        path.name.partition("-seed-")[2] for path in (folder / "weights").iterdir()
    }
    assert names == {
        f"{seed}-{label}.safetensors"
        for seed in (0, 1)
        for label in (
            *("plain", "ema-decay=0.9", "switch-ema-decay=0.8"),
            "switch-ema-decay=0.8.live",
        )
    }
    for cell in (cell for cell in cells if cell.seeds == (0,)):
        state = read(checkpoint_path(folder, cell))
        label = cell.methods[-1]
        live = "plain" if "plain" in cell.methods else f"{label}.live"
        found = load_file(weights_path(folder, cell, live, 0))
        assert found.keys() == state["model"].keys()
        assert all(torch.equal(found[name], v) for name, v in state["model"].items())
        written = header(weights_path(folder, cell, label, 0))
        expected = {
            *(("method", label), ("weights", "average"), ("steps", "12")),
            *(("epochs", "3"), ("seed", "0"), ("task", tiny), ("cell", cell.id)),
            ("version", __version__),
        }
        assert expected <= set(written.items())
        decay = label.partition("decay=")[2]
        assert f"decay={decay}" in written["options"]
        assert 0 < float(written["decay"]) < float(decay)  # warmed up so far
        assert {"commit", "options", "optimizer", "network", "values"} <= written.keys()


def test_a_plain_model_loads_a_file_and_has_the_stored_value(tiny, tmp_path):
    folder, cells = compare((tiny,), tmp_path)
    cell = next(c for c in cells if c.methods[-1] == METHODS[-1] and c.seeds == (1,))
    task = create_task(tiny, (1,))
    model = task.model().eval()
    path = weights_path(folder, cell, METHODS[-1], 1)
    model.load_state_dict(load_file(path))
    with torch.no_grad():
        found = task.evaluate(model)
    _, results = open_run(folder)
    with closing(results):
        stored = {
            metric: values[-1]
            for method, seed, metric, values in results.curves(cell)
            if (method, seed) == (METHODS[-1], 1) and metric != "training loss"
        }
    assert found == stored == json.loads(header(path)["values"])


def test_kept_weights_are_evaluated_again_to_the_last_bit(tiny, tmp_path):
    folder, _ = compare((tiny,), tmp_path)
    found = list(evaluate_kept(folder, "cpu"))
    assert len(found) == 2 * 2 * len(METHODS)  # seeds, metrics
    assert all(one.value == one.stored for one in found)
    path = next((folder / "weights").glob("*seed-0-plain.safetensors"))
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(UsageError, match=f"{path.name} cannot be read"):
        list(evaluate_kept(folder, "cpu"))


def test_weights_without_checkpoints_are_loaded(tiny, tmp_path):
    folder, _ = compare((tiny,), tmp_path)
    (by_checkpoint,) = load_kept(folder, METHODS, "cpu")
    for path in (folder / "cells").glob("*.pt"):
        path.unlink()
    for seed in (0, 1):
        (kept,) = load_kept(folder, METHODS, "cpu", seed=seed)
        assert kept.seed == seed and list(kept.weights) == list(METHODS)
        if seed == 0:
            for label, weights in by_checkpoint.weights.items():
                for name, value in weights.items():
                    assert torch.equal(kept.weights[label][name], value)


def test_stacked_seeds_are_kept_one_by_one(tmp_path):
    options = {"epochs": 2, "methods": ("plain", "ema:decay=0.5"), "seeds": 4}
    folder, (cell,) = compare(
        ("digits:size=64",), tmp_path, keep="last", stack="auto", **options
    )
    assert len(cell.seeds) == 4
    found = list(evaluate_kept(folder, "cpu"))
    assert len({one.seed for one in found}) == 4
    for one in found:
        assert one.value == pytest.approx(one.stored, abs=1e-4)


def test_none_last_and_all(tiny, tmp_path):
    for keep, files in ((None, 0), ("none", 0), ("all", 3)):
        methods = ("plain",)
        settings = {"methods": methods, "seeds": 1}
        folder, _ = compare((tiny,), tmp_path / str(keep), keep=keep, **settings)
        assert len(list(folder.glob("weights/*"))) == files
    with pytest.raises(UsageError, match="keep must be none, last or all, got 'some'"):
        RunOptions(keep="some")
    with pytest.raises(UsageError, match="no kept weights; --keep last keeps them"):
        list(evaluate_kept(tmp_path / "none" / "run"))


def test_bf16_is_evaluated_in_bf16(tiny, tmp_path):
    folder, _ = compare((tiny,), tmp_path, precision="bf16", seeds=1)
    assert all(one.value == one.stored for one in evaluate_kept(folder, "cpu"))
