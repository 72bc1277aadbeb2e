"""A rehearsal trains few steps of the real training, and measures them."""

from dataclasses import replace

import pytest
import torch

from switch_ema.bench.errors import UsageError
from switch_ema.bench.plan.cells import make_plan
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.train import rehearsal
from switch_ema.bench.train.context import RunContext
from switch_ema.bench.train.rehearsal import RehearsalLimits, examples_in, rehearse_cell

TASK = """
import torch
from torch import nn

from switch_ema.bench.task import Batches, Metric, Recipe, Task


class Line(Task):
    metrics = (Metric(name="error", higher_is_better=False),)
    recipe = Recipe(epochs=100, schedule="cosine", accumulate=2)

    def __init__(self, seed):
        super().__init__(seed)
        self.x, self.y = torch.randn(80, 10), torch.randn(80, 1)
        self.x_eval = self.x

    def model(self):
        return nn.Sequential(nn.Linear(10, 20), nn.Tanh(), nn.Linear(20, 1))

    def optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.1)

    def train_loader(self, epoch):
        return Batches((self.x, self.y), 8, self.seed, epoch=epoch)

    def loss(self, model, batch):
        return nn.functional.mse_loss(model(batch[0]), batch[1])

    def evaluate(self, model):
        return {"error": model(self.x_eval).square().mean().item()}

    def shorten_evaluation(self, examples):
        self.x_eval = self.x_eval[:examples]
        return len(self.x_eval)
"""


@pytest.fixture
def cell(tmp_path):
    file = tmp_path / "line.py"
    file.write_text(TASK)
    config = CompareConfig(tasks=(f"{file}:Line",), methods=("plain", "ema"), seeds=1)
    (only,) = make_plan(config)
    return only


def test_it_measures_steps_evaluation_memory_and_operations(cell, tmp_path):
    limits = RehearsalLimits(steps=2, evaluated=5)
    found = rehearse_cell(cell, RunContext(tmp_path, device="cpu"), limits)

    assert found.batch == 16, "two micro-batches of 8"
    assert found.evaluated == 5
    # Forward: 2 operations per weight; backward: the same for the weights' gradients,
    # and for the inputs' of the second layer.
    assert found.flops == 2 * (2 * 10 * 20 + 3 * 20)
    # Kept for the backward pass: 10 inputs, 20 outputs of tanh, 1 error, 1 target.
    assert found.activations_mb * 1e6 == pytest.approx(4 * (10 + 20 + 2), abs=8)
    # Weights, gradients and one average of 241 numbers.
    assert found.state_mb * 1e6 == pytest.approx(
        3 * 4 * 241, abs=250
    )  # the average is padded
    assert found.device == "cpu" and found.device_mb is None
    assert found.process_mb > 50
    assert found.checkpoint_mb > 0 and found.values["error"] > 0
    assert 0 < found.step_seconds <= found.loop_seconds
    assert found.input_rate > 0


def test_it_begins_the_first_and_the_last_epoch(cell, tmp_path):
    begun = []

    class Watched(rehearsal.RehearsedTraining):
        def _train_epoch(self):
            before = [p.detach().clone() for p in self.model.parameters()]
            super()._train_epoch()
            after = self.model.parameters()
            moved = any((a != b).any() for a, b in zip(before, after, strict=True))
            (group,) = self.optimizer.param_groups
            begun.append((self.epoch, moved, len(self.watch.steps), group["lr"]))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rehearsal, "RehearsedTraining", Watched)
        limits = RehearsalLimits(steps=2)
        rehearse_cell(cell, RunContext(tmp_path, device="cpu"), limits)

    # 2 of 5 steps per epoch, each of two micro-batches; the schedule is that of all
    # 500 steps, and goes on after the checkpoint.
    (first, last) = begun
    assert first[:3] == (0, True, 4) and last[:3] == (99, True, 4)
    assert 0.0999 < last[3] < first[3] < 0.1


def test_it_notices_a_checkpoint_with_other_weights(cell, tmp_path, monkeypatch):
    save = rehearsal.save_checkpoint

    def save_others(training):
        with torch.no_grad():
            kept = training.model[0].bias.clone()
            training.model[0].bias += 1
            save(training)
            training.model[0].bias.copy_(kept)

    monkeypatch.setattr(rehearsal, "save_checkpoint", save_others)
    with pytest.raises(UsageError, match="the checkpoint has other weights"):
        rehearse_cell(cell, RunContext(tmp_path, device="cpu"), RehearsalLimits())


def test_examples_are_images_texts_or_words():
    words = torch.zeros(4, 16, dtype=torch.long)
    assert examples_in((words, words, "state")) == 64, "a language model"
    assert examples_in((words, torch.zeros(4, dtype=torch.long))) == 4, "texts"
    assert examples_in((torch.zeros(4, 3, 8, 8), torch.zeros(4, 10))) == 4, "blended"
    assert examples_in(((torch.zeros(4, 3), torch.zeros(4, 3)),)) == 4, "views"


@pytest.mark.parametrize("groups", [1, 4])
def test_operations_of_grouped_convolutions(groups):
    layer = torch.nn.Conv2d(8, 8, 3, padding=1, groups=groups)
    seen = rehearsal._Inspection()
    with seen.watching(layer.parameters()):
        layer(torch.randn(2, 8, 5, 5, requires_grad=True)).sum().backward()
    forward = 2 * 2 * 25 * 9 * 8 * 8 // groups
    assert seen.flops == 3 * forward


def test_recurrent_layers_are_counted():
    layer, seen = torch.nn.LSTM(10, 20), rehearsal._Inspection()
    with seen.watching(layer.parameters()), rehearsal._countable(layer):
        layer(torch.randn(5, 3, 10))[0].sum().backward()
    forward = 2 * 15 * 4 * 20 * (10 + 20)
    assert 2.5 * forward < seen.flops < 3 * forward, "the inputs need no gradient"


def test_both_passes_of_sam_count(cell, tmp_path):
    sam = replace(cell, optimizer="sam:lr=0.1", methods=("plain",))
    limits = RehearsalLimits(steps=2)
    found = rehearse_cell(sam, RunContext(tmp_path, device="cpu"), limits)
    assert found.flops == 2 * 2 * (2 * 10 * 20 + 3 * 20)
