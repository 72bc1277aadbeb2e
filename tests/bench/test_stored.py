"""A run that version 0.1.0 has begun is shown, continued and looked at.

``stored/run-0.1.0`` was stopped after two of three epochs of its second training, and
``stored/expected.json`` has the values of the comparison run in one go, both by the
code of 0.1.0: ``switch-ema compare moons --methods plain ema switch-ema --seeds 2
--epochs 3 --device cpu``.
"""

import io
import json
import shutil
import sqlite3
from pathlib import Path

import pytest
import torch
from rich.console import Console

from switch_ema.bench.execute.options import RunOptions
from switch_ema.bench.results.folder import open_run
from switch_ema.bench.results.kept_weights import load_kept
from switch_ema.commands.compare import Compare, Report

STORED = Path(__file__).with_name("stored")


@pytest.fixture
def run(tmp_path):
    return shutil.copytree(STORED / "run-0.1.0", tmp_path / "run")


def call(command):
    console = Console(file=io.StringIO(), width=120)
    command(console)
    return " ".join(console.file.getvalue().split())


def test_it_is_shown(run):
    text = call(Report(run))
    assert "1 training of this task has not been run yet" in text
    assert "Undecided: with n = 2 there are too few seeds" in text
    assert (run / "report.html").is_file()


def test_it_is_continued_to_the_same_values(run):
    config, results = open_run(run)
    results.close()
    options = RunOptions(out=run.parent, name=run.name, executor="inline", device="cpu")
    text = call(Compare(settings=config, run=options))
    assert "1 of 2 trainings are already done" in text
    columns = "method, seed, metric, epoch, value"
    with sqlite3.connect(run / "results.sqlite") as file:
        rows = file.execute(f"SELECT {columns} FROM metrics ORDER BY 1, 2, 3, 4")
        assert [list(row) for row in rows] == json.loads(
            (STORED / "expected.json").read_text()
        )


def test_its_weights_are_read(run):
    (kept,) = load_kept(run, device="cpu")
    assert list(kept.weights) == ["plain", "ema", "switch-ema"]
    assert [len(points) for points in kept.trajectory.values()] == [4, 4, 3]
    for method, weights in kept.weights.items():
        last = kept.trajectory[method][-1]
        assert all(torch.equal(weights[name], last[name]) for name in last)
