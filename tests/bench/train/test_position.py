"""A training that is stopped within an epoch resumes there, to the last bit."""

import math
import os
import signal

import pytest
import torch

from switch_ema.bench.plan.cells import make_plan
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.train import loop
from switch_ema.bench.train.checkpoints import checkpoint_path
from switch_ema.bench.train.context import RunContext
from switch_ema.bench.train.loop import train_cell

TASK = """
import random

import numpy
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from switch_ema.bench.task import Batches, Metric, Recipe, Task


class Noisy:
    # Draws from every global generator between two steps, like an augmentation.
    def __init__(self, loader):
        self.loader = loader

    def __len__(self):
        return len(self.loader)

    def __iter__(self):
        for x, y in self.loader:
            shift = random.random() + numpy.random.rand()
            yield x + 0.1 * shift + 0.1 * torch.randn(x.shape), y


class Jitter(torch.utils.data.Dataset):
    # Draws from the generators of a worker process.
    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        noise = torch.randn(self.x[index].shape) * random.random()
        return self.x[index] + 0.1 * noise, self.y[index]


class Points(Task):
    metrics = (Metric(name="error", higher_is_better=False),)
    recipe = Recipe(epochs=2)

    def __init__(self, seed, *, loader="memory"):
        super().__init__(seed)
        generator = torch.Generator().manual_seed(seed)
        self.x = torch.randn(40, 2, generator=generator)
        self.y = self.x.sum(1, keepdim=True)
        self.loader, self.begun = loader, []

    def model(self):
        return nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.Dropout(0.3),
                             nn.Linear(8, 1))

    def optimizer(self, model):
        return torch.optim.AdamW(model.parameters(), lr=0.05)

    def train_loader(self, epoch):
        if self.loader == "workers":
            return DataLoader(Jitter(self.x, self.y), 4, shuffle=True, num_workers=2)
        batches = Batches((self.x, self.y), 4, self.seed, epoch=epoch)
        return Noisy(batches) if self.loader == "augmented" else batches

    def loss(self, model, batch):
        return nn.functional.mse_loss(model(batch[0]), batch[1])

    def evaluate(self, model):
        return {"error": self.loss(model, (self.x, self.y)).item()}
"""
METHODS = ("plain", "ema:decay=0.9", "swa", "lawa", "switch-ema:switch_every=7it")


@pytest.fixture
def task(tmp_path):
    path = tmp_path / "points.py"
    path.write_text(TASK)
    return f"{path}:Points"


def cells_of(task, loader="memory", **options):
    methods = options.pop("methods", METHODS)
    config = CompareConfig(
        tasks=(f"{task}:loader={loader}",), methods=methods, seeds=1, **options
    )
    return make_plan(config)


def interrupted(cell, folder, monkeypatch, steps, number=signal.SIGTERM):
    """Train, and send a signal to this process during the given steps."""
    original, taken = loop.take_step, 0

    def take_step(*arguments):
        nonlocal taken
        taken += 1
        if taken in steps:
            os.kill(os.getpid(), number)
        return original(*arguments)

    monkeypatch.setattr(loop, "take_step", take_step)
    try:
        return train_cell(cell, RunContext(folder, "cpu"))
    finally:
        monkeypatch.undo()


def states(cell, *folders):
    return [
        torch.load(checkpoint_path(folder, cell), weights_only=True)
        for folder in folders
    ]


def assert_same(one, other, where=""):
    """Compare nested states, to the last bit."""
    assert type(one) is type(other), where
    if isinstance(one, torch.Tensor):
        assert torch.equal(one.nan_to_num(), other.nan_to_num()), where
    elif isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for key in one:
            if "seconds" not in str(key):
                assert_same(one[key], other[key], f"{where}/{key}")
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other), where
        for number, (a, b) in enumerate(zip(one, other, strict=True)):
            assert_same(a, b, f"{where}/{number}")
    else:
        assert one == other or (one != one and other != other), where


RECIPES = {
    "memory": ("memory", {}),
    "augmented": ("augmented", {}),
    "workers": ("workers", {}),
    "accumulated": ("augmented", {"accumulate": 3}),
    "sam": ("augmented", {"optimizer": "sam:lr=0.05"}),
    "schedule-free": ("memory", {"optimizer": "schedulefree-adamw"}),
    "scheduled": ("memory", {"schedule": "cosine", "warmup_epochs": 0.5, "clip": 0.1}),
}


@pytest.mark.parametrize(("loader", "options"), RECIPES.values(), ids=RECIPES)
def test_stopped_within_an_epoch_and_resumed_equals_uninterrupted(
    task, tmp_path, monkeypatch, loader, options
):
    for cell in cells_of(task, loader, **options):
        whole = train_cell(cell, RunContext(tmp_path / "whole", "cpu"))
        for steps in ({2}, {1}):  # step 2 of the first epoch, then the one after
            with pytest.raises(KeyboardInterrupt):
                interrupted(cell, tmp_path / "parts", monkeypatch, steps)
            (state,) = states(cell, tmp_path / "parts")
            assert 0 < state["position"]["batches"] < 10
        resumed = train_cell(cell, RunContext(tmp_path / "parts", "cpu"))
        assert resumed.values == whole.values
        assert resumed.starts == whole.starts
        assert resumed.trained == whole.trained
        assert_same(*states(cell, tmp_path / "whole", tmp_path / "parts"))


def test_sigusr1_saves_and_goes_on(task, tmp_path, monkeypatch):
    (cell,) = cells_of(task, methods=("plain",))
    whole = train_cell(cell, RunContext(tmp_path / "whole", "cpu"))
    saved, save = [], loop.save_checkpoint

    def note(training, position=None):
        saved.append((training.epoch, position and position["batches"]))
        save(training, position)

    monkeypatch.setattr(loop, "save_checkpoint", note)
    result = interrupted(cell, tmp_path / "saved", monkeypatch, {3, 13}, signal.SIGUSR1)
    assert saved == [(0, 3), (1, None), (1, 3), (2, None)]
    assert result.values == whole.values
    assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL


@pytest.mark.parametrize(("seconds", "within"), [(0.0, 18), (math.inf, 0)])
def test_checkpoints_are_written_as_often_as_asked(
    task, tmp_path, monkeypatch, seconds, within
):
    (cell,) = cells_of(task, methods=("plain",))
    saved = []
    monkeypatch.setattr(
        loop, "save_checkpoint", lambda _, where=None: saved.append(where)
    )
    train_cell(cell, RunContext(tmp_path, "cpu", checkpoint_every=seconds))
    assert (
        sum(where is not None and not where["is_trained"] for where in saved) == within
    )
    assert saved.count(None) == 2  # at the end of each epoch


def test_stopped_before_an_evaluation_resumes_with_it(task, tmp_path, monkeypatch):
    (cell,) = cells_of(task, methods=("plain", "ema:decay=0.9"))
    whole = train_cell(cell, RunContext(tmp_path / "whole", "cpu"))
    with pytest.raises(KeyboardInterrupt):
        interrupted(cell, tmp_path / "parts", monkeypatch, {10})  # the epoch's last
    (state,) = states(cell, tmp_path / "parts")
    assert state["position"]["is_trained"] and state["epoch"] == 0
    steps = []
    original = loop.take_step
    monkeypatch.setattr(
        loop, "take_step", lambda *a: (steps.append(1), original(*a))[1]
    )
    resumed = train_cell(cell, RunContext(tmp_path / "parts", "cpu"))
    assert len(steps) == 10  # the second epoch alone
    assert resumed.values == whole.values
    assert_same(*states(cell, tmp_path / "whole", tmp_path / "parts"))


def test_a_handler_of_the_launcher_is_called_after_the_save(
    task, tmp_path, monkeypatch
):
    """As submitit's, which requeues the job and exits."""
    (cell,) = cells_of(task, methods=("plain",))
    seen = []

    def requeue(number, frame):
        seen.append(checkpoint_path(tmp_path, cell).exists())
        raise SystemExit(-1)

    before = signal.signal(signal.SIGUSR2, requeue)
    try:
        with pytest.raises(KeyboardInterrupt):
            interrupted(cell, tmp_path, monkeypatch, {3}, signal.SIGUSR2)
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert seen == [True]
    (state,) = states(cell, tmp_path)
    assert state["position"]["batches"] == 3
