"""Every benchmark runs from end to end, as small as it gets, so that none rots.

Within this process, because importing torch eight times would take longer than all
of them. Times mean nothing here and are not looked at.
"""

import gc
import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from torch import nn

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "benchmarks"
SCRIPTS = {path.stem for path in FOLDER.glob("*.py") if "__main__" in path.read_text()}
SHORT = ("--seeds", "4", "--epochs", "1")
SMALLEST = {
    "averaging": ["--models", "tiny", "--json", "{json}"],
    "switching": ["--models", "tiny", "--json", "{json}"],
    "fused": ["--models", "tiny", "--json", "{json}"],
    "training": ["--json", "{json}"],
    "sharing": ["--epochs", "1", "--task", "{folder}/sharing.py:CifarSized:{size}"],
    "landscape": [],
    "distributed": ["--models", "tiny", "--json", "{json}"],
    "precision": ["--models", "tiny", "--steps", "300", "--json", "{json}"],
    "cluster": ["--workers", "1", "--cells", "2", "--epochs", "1", "--json", "{json}"],
    "teacher": ["--models", "tiny", "--batch", "1", "--json", "{json}"],
    "stacking": [*SHORT, "--tasks", "noisy-digits:size=40", "--json", "{json}"],
    "chance": [*SHORT, "--task", "digits:size=40", "--json", "{json}"],
    "sequential": ["--repeats", "1", "--max-seeds", "16", "--json", "{json}"],
    "skew": ["--seeds", "4", "12", "--json", "{json}"],
    "data_memory": ["--json", "{json}"],
    "large": ["--model", "gpt_tiny", "--tokens", "4", "--json", "{json}"],
    "slicing": ["--layers", "2", "--json", "{json}"],
    "input": ["--json", "{json}"],
    "windows": [
        *("--repeats", "2", "--pilot", "2", "--shorter", "20", "--json", "{json}"),
        *("--settings", "digits, 200 steps, constant"),
    ],
    "best": [
        "--repeats",
        "2",
        "--epochs",
        "1",
        "--tasks",
        "digits",
        "--json",
        "{json}",
    ],
    "audit": ["--json", "{json}"],
    "merge": ["--model", "tiny", "--checkpoints", "2", "--json", "{json}"],
}
SIZE = "steps=1,batch=2"


def tiny() -> nn.Module:
    pool = nn.AdaptiveAvgPool2d(4)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), pool, nn.Linear(4, 4))


@pytest.fixture
def import_script(monkeypatch):
    """Import a script as it would be imported beside its neighbours."""
    monkeypatch.syspath_prepend(FOLDER)
    before = set(sys.modules)
    monkeypatch.setattr(importlib.import_module("timing"), "WARMUP", 0)
    monkeypatch.setitem(importlib.import_module("models").MODELS, "tiny", tiny)
    gc.freeze()  # the scripts collect garbage often, and not that of other tests
    yield importlib.import_module
    gc.unfreeze()
    for path in FOLDER.glob("*.py"):
        if path.stem not in before:
            sys.modules.pop(path.stem, None)


@pytest.mark.parametrize("name", sorted(SMALLEST))
def test_script_runs(name, import_script, tmp_path, monkeypatch, capsys):
    file = tmp_path / "results.json"
    parts = {"json": file, "folder": FOLDER, "size": SIZE}
    arguments = [part.format(**parts) for part in SMALLEST[name]]
    module = import_script(name)
    make_smaller(module, monkeypatch)
    monkeypatch.setattr(sys, "argv", [name, "--repeats", "1", *arguments])
    assert not module.main()
    assert "\u2502" in capsys.readouterr().out  # a table
    if "{json}" in SMALLEST[name]:
        check(name, json.loads(file.read_text()))


def make_smaller(module, monkeypatch):
    """Leave out what takes time and has no argument."""
    monkeypatch.setattr(module, "BUILDS", 1, raising=False)
    if module.__name__ == "averaging":  # these two take longer to import than all else
        slow = ("diffusers", "mmengine")
        quick = [c for c in module.CONTESTANTS if not c.name.startswith(slow)]
        monkeypatch.setattr(module, "CONTESTANTS", quick)
    if module.__name__ == "stacking":  # processes import torch anew
        monkeypatch.setattr(module, "EXECUTOR", "inline")
    if module.__name__ == "data_memory":  # a gigabyte, and one for a million examples
        grown = lambda name, size: (1 + size / 1e6, 0.0)  # noqa: E731
        monkeypatch.setattr(module, "in_own_process", grown)
    if module.__name__ == "landscape":
        monkeypatch.setattr(module, "POINTS", module.POINTS[::20])
    if module.__name__ == "input":
        smaller = {"IMAGES": 8, "CHUNK": 4, "CHUNKS": 2, "LOADED": 4, "WORKERS": 1}
        for name, number in {**smaller, "STEPS": 1, "BATCH": 2}.items():
            monkeypatch.setattr(module, name, number)
    if module.__name__ == "audit":
        monkeypatch.setattr(module, "STEPS", 20)
        *_, small = module.CASES.items()
        monkeypatch.setattr(module, "CASES", dict([small]))
    if module.__name__ == "training":
        model, optimizer, batches = module.resnet18()
        small = model, optimizer, batches[:1, :2]
        monkeypatch.setitem(module.CASES, next(iter(module.CASES)), lambda: small)


def check(name, results):
    assert results["machine"]["cores"] >= 1
    if name == "distributed":
        check_collectives(results["models"]["tiny"])
    if name == "data_memory":
        full = {case["size"]: case["full"] for case in results["cases"].values()}
        assert full == pytest.approx({size: 1 + size / 1e6 for size in full})
    if name == "merge":
        assert results["checkpoints"] == 2 and results["peak_bytes"] < 50e6
    if name == "precision":
        bytes_of = {
            case: measured["shadow_bytes"]
            for case, measured in results["models"]["tiny"].items()
        }
        ratio = bytes_of["bfloat16 model, bfloat16 shadow"] / max(bytes_of.values())
        assert 0.5 <= ratio < 0.75  # statistics stay in float32
        for errors in results["accuracy"].values():
            assert 0 < errors["bfloat16"] < 0.01


def check_collectives(wrappers):
    counts = {
        wrapper: {
            name: measured["collectives"]
            for name, measured in found["operations"].items()
        }
        for wrapper, found in wrappers.items()
    }
    for found in counts.values():
        assert found["plain step"] > 0
        assert found["switch"] == found["averaged"] == 0
    assert counts["FSDP2"]["update"] == 0
    # The statistics of the one normalisation layer, floating and whole numbers.
    assert counts["DDP"]["update"] == 2


def test_the_pages_show_the_results(import_script):
    module = import_script("pages")
    shown = set()
    for path in module.PAGES:
        page = path.read_text()
        shown |= set(re.findall("<!-- results: (.*) -->", page))
        current = module.render(page, module.records.RESULTS)
        assert page == current, "run python benchmarks/pages.py"
    assert shown == set(module.BLOCKS)


def test_make_bench_runs_every_script():
    names = re.search(r"^BENCHMARKS := (.*)$", (ROOT / "Makefile").read_text(), re.M)
    assert names is not None
    assert set(names[1].split()) == SCRIPTS - {"pages"} == set(SMALLEST)


def test_make_bench_goes_on_after_an_error(tmp_path):
    stub = tmp_path / "python"
    stub.write_text('#!/bin/sh\necho "ran $@"\ncase $1 in *fused.py) exit 3;; esac\n')
    stub.chmod(0o755)
    options = ["-o", ".venv/.peers", f"RUN={stub}", "REPEATS=2"]
    done = subprocess.run(
        ["make", *options, "bench"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode != 0
    assert done.stderr.startswith("Failed: fused\n")
    for name in SMALLEST:
        assert f"ran benchmarks/{name}.py --repeats 2\n" in done.stdout
