"""The weights of every epoch: complete, and only where they are small."""

import torch

from switch_ema.bench.plan.cells import make_plan
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.train import trajectory
from switch_ema.bench.train.context import RunContext
from switch_ema.bench.train.loop import Training
from switch_ema.bench.train.trajectory import load_trajectory


def cell_of(tiny):
    config = CompareConfig(tasks=(tiny,), methods=("plain", "ema:decay=0.5"), seeds=1)
    (cell,) = make_plan(config)
    return cell


def test_every_epoch_from_the_beginning(tiny, tmp_path):
    cell = cell_of(tiny)
    training = Training(cell, RunContext(tmp_path, "cpu", keeps_trajectory=True))
    start = {name: p.detach().clone() for name, p in training.model.named_parameters()}
    training.run()
    kept = load_trajectory(tmp_path, cell)
    assert list(kept) == ["ema:decay=0.5", "plain"] or set(kept) == set(cell.methods)
    assert [len(points) for points in kept.values()] == [4, 4]  # 3 epochs
    for name, live in training.model.named_parameters():
        assert torch.equal(kept["plain"][0][name], start[name])
        assert torch.equal(kept["ema:decay=0.5"][0][name], start[name])
        assert torch.equal(kept["plain"][-1][name], live)
    average = training.averagers["ema:decay=0.5"].averaged_state_dict()
    last = kept["ema:decay=0.5"][-1]
    assert all(torch.equal(last[name], average[name]) for name in last)


def test_nothing_is_written_unasked_or_too_large(tiny, tmp_path, monkeypatch):
    cell = cell_of(tiny)
    Training(cell, RunContext(tmp_path / "a", "cpu")).run()
    monkeypatch.setattr(trajectory, "LARGEST", 100)
    Training(cell, RunContext(tmp_path / "b", "cpu", keeps_trajectory=True)).run()
    assert load_trajectory(tmp_path / "a", cell) == {}
    assert load_trajectory(tmp_path / "b", cell) == {}
