"""Processes of torchrun: what goes through its store is checked data."""

import json
import os
import pickle
import sys
from dataclasses import replace

import pytest
from torch.distributed import HashStore

from switch_ema.bench.execute import torchrun
from switch_ema.bench.plan.cells import make_plan
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.train.context import RunContext
from switch_ema.bench.train.result import CellResult


class Left(BaseException):
    """The process ends here."""


class Hostile:
    def __reduce__(self):
        return os.mkdir, ("pwned",)


@pytest.fixture
def store(tmp_path, monkeypatch):
    """One store for both sides; a process that leaves raises."""
    monkeypatch.chdir(tmp_path)
    found = HashStore()
    monkeypatch.setattr(torchrun, "_store", lambda: found)

    def leave(code):
        raise Left(code)

    monkeypatch.setattr(torchrun.os, "_exit", leave)
    return found


@pytest.fixture
def trained(monkeypatch):
    """What the worker was asked to train."""
    found = []

    def train(how, cell, context, progress):
        found.append((cell, context))
        return CellResult()

    monkeypatch.setattr(torchrun, "explained", train)
    monkeypatch.setattr(torchrun, "train_or_raise", train)
    return found


def tell(tiny, folder, **more):
    config = CompareConfig(
        tasks=("digits", tiny), methods=("plain", "ema", "switch-ema"), seeds=2, **more
    )
    context = RunContext(folder, "cpu", ("tensorboard",), True, "ab cd", saves_every=1)
    cells = make_plan(config)
    list(torchrun.train_launched(cells, lambda cell: context, lambda *now: None))
    torchrun.dismiss()
    return [(cell, context) for cell in cells]


@pytest.mark.parametrize("more", [{}, {"optimizer": "sgd:lr=0.1", "clip": 1}])
@pytest.mark.parametrize("how", ["task", "--config", "--config="])
def test_other_processes_train_the_same_cells(
    store, trained, tiny, tmp_path, monkeypatch, how, more
):
    told = tell(tiny, tmp_path / "run", **more)
    path = tmp_path / "config.json"
    path.write_text(CompareConfig(tasks=(tiny,)).to_json())
    words = {"task": [tiny], "--config": [how, str(path)]}
    words["--config="] = [f"--config={path}"]
    monkeypatch.setattr(sys, "argv", ["switch-ema", "compare", *words[how]])
    trained.clear()
    torchrun.follow()
    assert trained == told
    assert [cell.id for cell, _ in trained] == [cell.id for cell, _ in told]


def test_a_pickle_in_the_store_is_not_executed(store, trained, tmp_path, capsys):
    torchrun._send(store, pickle.dumps((Hostile(), None, str(tmp_path))))
    with pytest.raises(Left):
        torchrun.follow()
    assert not (tmp_path / "pwned").exists() and trained == []
    assert "store has an invalid message for this command" in capsys.readouterr().err


@pytest.mark.parametrize(
    "change",
    [
        {"task": "other.py:Task"},
        {"task": "script:touch pwned {seed}"},
        {"seeds": "0"},
        {"seeds": [True]},
        {"methods": [1]},
        {"recipe": {"epochs": "3"}},
        {"unknown": 1},
        {"recipe": None},
    ],
)
def test_what_the_command_does_not_name_is_refused(
    store, trained, tiny, tmp_path, monkeypatch, capsys, change
):
    monkeypatch.setattr(sys, "argv", ["switch-ema", "compare", tiny])
    (cell, context), *_ = tell(tiny, tmp_path / "run")
    told = json.loads(torchrun._serialized(cell, replace(context, device=None)))
    told["cell"] |= change
    store.set(torchrun._key(1), json.dumps(told))
    trained.clear()
    with pytest.raises(Left):
        torchrun.follow()
    assert trained == []
    assert capsys.readouterr().err.startswith("switch-ema: torchrun's store has an inv")
