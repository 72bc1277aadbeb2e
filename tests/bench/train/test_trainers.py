"""A trial follows trainers that own the training loop, as in the examples."""

import json
import math
import runpy
import sys
from pathlib import Path

import pytest

import switch_ema
from switch_ema.bench.train import trial as module
from switch_ema.bench.train.trial import TRIAL

SCRIPTS = Path(__file__).parents[3] / "examples" / "scripts"
METHODS = ("plain", "ema:decay=0.5,warmup=none", "lawa:k=1")


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Run an example as a comparison would, in this process; return its lines."""
    monkeypatch.chdir(tmp_path)

    def run(name, *arguments, methods=METHODS):
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        log = tmp_path / "values.jsonl"
        if methods:
            told = {"methods": methods, "log": str(log), "lock": str(tmp_path / "lock")}
            monkeypatch.setenv(TRIAL, json.dumps(told))
            monkeypatch.setattr(module, "_begun_in", None)
            monkeypatch.setattr(module, "_leave_without", lambda lock: None)
        else:
            monkeypatch.delenv(TRIAL, raising=False)
        runpy.run_path(str(SCRIPTS / name), run_name="__main__")
        text = log.read_text() if methods else "{}"
        return [json.loads(line) for line in text.splitlines()], capsys.readouterr().out

    return run


@pytest.mark.zoo  # torchmetrics, which Lightning imports, imports transformers
@pytest.mark.parametrize(
    ("name", "arguments", "metric", "evaluations"),
    [
        ("lightning_script.py", (), "val_loss", [1, 2]),
        # It evaluates once more in the end.
        ("transformers_script.py", ("--output_dir", "out"), "eval_loss", [1, 2, 2]),
        ("timm_script.py", (), "top1", [1, 2]),
    ],
)
def test_each_method_is_measured_and_the_training_is_left_alone(
    run, name, arguments, metric, evaluations
):
    _, alone = run(name, *arguments, "--seed", "3", methods=())
    (_, *rows), told = run(name, *arguments, "--seed", "3")
    assert [row["epoch"] for row in rows] == evaluations
    assert told.splitlines()[-1] == alone.splitlines()[-1]  # what the script reports
    plain, ema, last = ([row[method][metric] for row in rows] for method in METHODS)
    assert all(map(math.isfinite, ema)) and ema != plain
    # The snapshot of an epoch's end is the live model: it is taken before measuring.
    assert last == pytest.approx(plain, rel=1e-5)


def test_what_is_no_trainer_is_refused(monkeypatch):
    assert not switch_ema.trial(object()).is_active
    monkeypatch.setenv(TRIAL, "{}")
    with pytest.raises(TypeError, match=r"or a Trainer of lightning.*got dict"):
        switch_ema.trial({})
