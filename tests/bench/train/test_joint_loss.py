"""Losses over all examples of a step, embedded in micro-batches."""

from pathlib import Path

import pytest
import torch

from switch_ema.bench.plan.cells import make_plan
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.train.checkpoints import checkpoint_path
from switch_ema.bench.train.context import RunContext
from switch_ema.bench.train.loop import train_cell

TASKS = """
from switch_ema.bench.task import JointLossTask

class Compared(JointLossTask, Tiny):
    size = 8
    norm = nn.Identity

    def __init__(self, seed, **options):
        super().__init__(seed, **options)
        self.x, self.y = self.x[:24].double(), self.y[:24].double()

    def model(self):
        return nn.Sequential(nn.Linear(2, 4), self.norm(4), nn.Linear(4, 3)).double()

    def train_loader(self, epoch):
        return Batches((self.x, self.y), self.size, self.seed, epoch=epoch)

    def embed(self, model, batch):
        return (model(batch[0]), model(batch[0].flip(1)))

    def targets(self, model, batch):
        return (batch[1],)

    def joint_loss(self, model, embeddings, targets):
        first, second = embeddings
        similar = first @ second.T - targets[0].flatten() / 10
        return (similar.logsumexp(1) - similar.diagonal()).mean()

    def evaluate(self, model):
        return {"error": 0.0, "slope": 0.0}


class Parts(Compared):
    size = 4


class Normalised(Parts):
    norm = nn.BatchNorm1d
"""


@pytest.fixture
def train(tiny, tmp_path):
    """Train a task for an epoch; return the state of its model."""
    path = Path(tiny.partition(":")[0])
    path.write_text(path.read_text() + TASKS)

    def trained(name, **options):
        config = CompareConfig(
            tasks=(f"{path}:{name}",), methods=("plain",), seeds=1, epochs=2, **options
        )
        [cell] = make_plan(config)
        folder = tmp_path / name
        result = train_cell(cell, RunContext(folder, "cpu"))
        assert result.status == "done"
        return torch.load(checkpoint_path(folder, cell), weights_only=True)["model"]

    return trained


def test_micro_batches_have_the_gradient_of_the_whole_batch(train):
    whole, parts = train("Compared"), train("Parts", accumulate=2)
    for name, tensor in whole.items():
        torch.testing.assert_close(parts[name], tensor, rtol=1e-9, atol=1e-12)


def test_each_micro_batch_counts_once_in_the_running_statistics(train):
    parts = train("Normalised", accumulate=2)
    assert parts["1.num_batches_tracked"] == 2 * 2 * 6  # epochs, views, micro-batches
