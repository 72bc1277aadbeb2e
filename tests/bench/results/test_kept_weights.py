"""What is read back from a run is what was trained."""

from dataclasses import replace

import pytest
import torch

from switch_ema.bench.analyses.landscape import TaskLandscape
from switch_ema.bench.analyses.landscape_settings import LandscapeSettings
from switch_ema.bench.errors import UsageError
from switch_ema.bench.plan.cells import make_plan
from switch_ema.bench.results.folder import open_run
from switch_ema.bench.results.kept_weights import joined, load_kept
from switch_ema.bench.train.checkpoints import checkpoint_path, read, save
from tests.commands.conftest import finished  # noqa: F401 - a fixture


def test_weights_are_those_of_the_checkpoints(finished):  # noqa: F811
    digits, moons = load_kept(finished, device="cpu")
    config, results = open_run(finished)
    results.close()
    (cell,) = (
        cell
        for cell in make_plan(config)
        if "plain" in cell.methods
        and cell.task.startswith("digits")
        and cell.seeds == (0,)
    )
    stored = read(checkpoint_path(finished, cell))
    for name, value in stored["model"].items():
        assert torch.equal(digits.weights["plain"][name], value)
    assert list(digits.weights) == ["plain", "ema:decay=0.9", "switch-ema"]
    assert [len(points) for points in digits.trajectory.values()] == [3, 3, 3]
    # Of the stack of seeds only the first, with data of its own.
    assert moons.is_stacked and len(moons.task.seeds) == 1
    assert all(len(value) == 1 for value in moons.weights["plain"].values())


def test_landscapes_are_measured_with_the_threads_of_the_run(
    finished,  # noqa: F811
    monkeypatch,
):
    digits, _ = load_kept(finished, device="cpu")
    assert digits.threads == 1  # what a comparison chooses
    used, before = [], torch.get_num_threads()
    predictions = digits.task.predictions

    def noted(model):
        used.append(torch.get_num_threads())
        return predictions(model)

    monkeypatch.setattr(digits.task, "predictions", noted)
    for threads in (1, before + 1):
        kept = replace(digits, threads=threads)
        TaskLandscape(kept, LandscapeSettings(batches=1)).calibration("plain")
    assert (used, torch.get_num_threads()) == ([1, before + 1], before)


def test_joined_batches_have_the_same_mean_loss(finished):  # noqa: F811
    digits, _ = load_kept(finished, device="cpu")
    batches = list(digits.task.train_loader(0))
    weights = torch.tensor([float(len(y)) for _, y in batches])
    losses = torch.stack([digits.task.loss(digits.model, b) for b in batches])
    (whole,) = joined(batches)
    mean = (losses * weights).sum() / weights.sum()
    torch.testing.assert_close(digits.task.loss(digits.model, whole), mean)
    assert len(joined(batches, most=60)) == 4


@pytest.mark.parametrize(
    "batch", [torch.zeros(3), (torch.zeros(3, 2), torch.zeros(3, 2)), {"x": 1}]
)
def test_other_batches_stay_as_they_are(batch):
    assert joined([batch, batch]) == [batch, batch] or joined([batch])[0] is batch


def test_a_damaged_checkpoint_is_named(tmp_path):
    path = tmp_path / "cells" / "one.pt"
    path.parent.mkdir()
    save(path, {"epoch": 1})
    assert read(path) == {"epoch": 1}
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(UsageError, match=r"one\.pt is damaged; delete the folder"):
        read(path)
