"""Edits of a command's files are noticed, however it names them."""

import os
import sys
from pathlib import Path

import pytest

from switch_ema.bench.fingerprints import (
    changed_inputs,
    files_of_script,
    fingerprint,
    inputs_of,
    watched,
)
from switch_ema.bench.plan.config import CompareConfig

RAISES = "raise SystemExit('it was imported')\n"
FILES = {
    "train.py": "import helper\nimport torch, json\nfrom lib import part\n",
    "helper.py": "import unknown_module\n",
    "lib/part.py": "",
    "pkg/__init__.py": RAISES,
    "pkg/__main__.py": "from . import train\n",
    "pkg/train.py": "from .models.net import Net\nfrom .. import outside\n",
    "pkg/models/__init__.py": RAISES,
    "pkg/models/net.py": "import pkg.losses\n",
    "pkg/losses.py": RAISES,
    "pkg/unused.py": "",
    "src/deep/run.py": "import deep.more\n",
    "src/deep/more.py": "",
    "run.sh": '#!/bin/bash\nset -e\nexec python train.py --config=conf.yaml "$@"\n',
    "job": "#!/usr/bin/env bash\npython -m pkg.train --seed $1\n",
    "broken.py": "import (",
    "conf.yaml": "lr: 1",
    "conf-1.yaml": "lr: 1",
    "app/__main__.py": "import inner\n",
    "app/inner.py": "",
}
PKG = {"pkg/__init__.py", "pkg/train.py", "pkg/models/__init__.py"}
PKG |= {"pkg/models/net.py", "pkg/losses.py"}
TRAIN = {"train.py", "helper.py", "lib/part.py"}


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


CODE = {
    "python train.py {seed}": TRAIN,
    f"{sys.executable} -u train.py {{seed}}": TRAIN,
    "torchrun --standalone --nproc-per-node 2 train.py {seed}": TRAIN,
    "python -m torch.distributed.run --nproc-per-node 2 train.py {seed}": TRAIN,
    "python -m pkg.train {seed}": PKG,
    "python -u -mpkg.train {seed}": PKG,
    "torchrun --nproc-per-node 2 -m pkg.train {seed}": PKG,
    "accelerate launch --num_processes 2 --module pkg.train {seed}": PKG,
    "python -m pkg {seed}": PKG | {"pkg/__main__.py"},
    "python app {seed}": {"app/__main__.py", "app/inner.py"},
    "env PYTHONPATH=src python -m deep.run {seed}": {
        "src/deep/run.py",
        "src/deep/more.py",
    },
    "bash run.sh {seed}": TRAIN | {"run.sh"},
    "./job {seed}": PKG | {"job"},
    "bash -c 'python train.py {seed} && python -m pkg.train'": TRAIN | PKG,
    "python broken.py {seed}": {"broken.py"},
}


@pytest.mark.parametrize("command", CODE)
def test_the_code_of_a_command_is_found_and_every_edit_of_it_noticed(command):
    """The modules would end this process if they were imported."""
    task = f"script:{command}"
    found = {os.path.normpath(path) for path in files_of_script(task).code}
    assert found == CODE[command]
    before = fingerprint(task)
    assert before and fingerprint(task) == before
    for name in found:
        text = Path(name).read_text()
        Path(name).write_text(f"{text}# edited\n")
        assert fingerprint(task) != before, name
        Path(name).write_text(text)
        assert fingerprint(task) == before
    Path("pkg/unused.py").write_text("# edited")
    assert fingerprint(task) == before


def test_modules_are_found_along_pythonpath_and_among_installed_packages(monkeypatch):
    task = "script:python -m deep.run {seed}"
    assert fingerprint(task) == ""
    monkeypatch.setenv("PYTHONPATH", "src")
    found = fingerprint(task)
    assert found
    monkeypatch.delenv("PYTHONPATH")
    monkeypatch.syspath_prepend("src")  # as an editable install does
    assert fingerprint(task) == found


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("--config conf.yaml", ["conf.yaml"]),
        ("--config=conf.yaml", ["conf.yaml"]),
        ("config=conf.yaml --out {folder}", ["conf.yaml"]),
        ("--config conf-{seed}.yaml", ["conf-1.yaml"]),
        ("--out results.csv", []),
    ],
)
def test_other_files_that_a_command_names_are_inputs(words, names):
    task = f"script:python train.py {words} {{seed}}"
    config = CompareConfig(tasks=(task,), seeds=3)
    assert list(inputs_of([task], range(3))) == names
    stored, name = config.inputs, config.default_name
    Path("results.csv").write_text("what the script writes")
    assert changed_inputs(stored) == [] and config.default_name == name
    for path in map(Path, names):
        path.write_text("lr: 2")
    assert changed_inputs(stored) == names
    for path in map(Path, names):
        path.unlink()
    assert changed_inputs(stored) == names


def test_a_large_file_counts_by_its_size_and_time(monkeypatch):
    monkeypatch.setattr("switch_ema.bench.fingerprints.LARGEST", 3)
    task = "script:python train.py --data conf.yaml {seed}"
    (digest,) = inputs_of([task], ()).values()
    assert digest == f"5:{Path('conf.yaml').stat().st_mtime_ns}"


@pytest.mark.parametrize(
    ("command", "sentences"),
    [
        ("python train.py", ["Watched for edits: train.py, "]),
        (
            "python -m no.such.module",
            [
                "The module no.such.module was not found, so",
                "Found no code of the command",
            ],
        ),
        (
            "my-trainer",
            ["Found no code of the command my-trainer {seed}, so edits"],
        ),
        ("bash -c 'cd x; python y.py'", ["Found no code of the command bash -c"]),
        (
            "bash run.sh",
            ["Watched for edits: run.sh, ", "run.sh starts programs: edits"],
        ),
        ("python train.py -m resnet50", ["Watched for edits: train.py, "]),
        ("python train.py src", ["Watched for", "Edits in src are not detected."]),
    ],
)
def test_where_edits_are_not_noticed_is_said(command, sentences):
    found = watched(f"script:{command} {{seed}}")
    assert len(found) == len(sentences)
    for sentence, beginning in zip(found, sentences, strict=True):
        assert sentence.startswith(beginning)


def test_files_of_the_system_are_not_read():
    """A stored run of unknown origin names the command; some of these have no end."""
    task = "script:python /proc/kmsg --config=/dev/zero /sys/kernel/notes {seed}"
    assert files_of_script(task).code == files_of_script(task).others == ()
