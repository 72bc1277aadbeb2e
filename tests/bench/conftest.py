"""Tiny comparisons that the tests share."""

import re

import pytest

from switch_ema.bench.optimizers.catalog import OPTIMIZERS
from switch_ema.bench.plan.config import CompareConfig

PACKAGES = ("timm", "pytorch_optimizer")
ELSEWHERE = [n for n, one in OPTIMIZERS.items() if one.source.startswith(PACKAGES)]

TINY_TASK = '''
import torch
from torch import nn

from switch_ema.bench.task import Batches, Metric, Recipe, Task


class Tiny(Task):
    """A line through noisy points."""

    metrics = (
        Metric(name="error", higher_is_better=False),
        Metric(name="slope", higher_is_better=True),
    )
    recipe = Recipe(epochs=3)

    def __init__(self, seed, *, noise=0.5, diverge=False, fail=False, split="test"):
        super().__init__(seed)
        generator = torch.Generator().manual_seed(seed)
        self.x = torch.randn(32, 2, generator=generator)
        self.y = self.x.sum(1, keepdim=True)
        self.y += noise * torch.randn(32, 1, generator=generator)
        self.diverge, self.fail = diverge, fail

    def model(self):
        return nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.2), nn.Linear(4, 1))

    def optimizer(self, model):
        return torch.optim.AdamW(model.parameters(), lr=0.05)

    def train_loader(self, epoch):
        return Batches((self.x, self.y), 8, self.seed, epoch=epoch)

    def loss(self, model, batch):
        loss = nn.functional.mse_loss(model(batch[0]), batch[1])
        if self.fail:
            raise KeyError("lost key")
        return loss * float("nan") if self.diverge else loss

    def evaluate(self, model):
        error = nn.functional.mse_loss(model(self.x), self.y).item()
        return {"error": error, "slope": model[0].weight.sum().item()}
'''


@pytest.fixture
def tiny(tmp_path):
    """The spelling of a task in a user's file."""
    path = tmp_path / "tiny.py"
    path.write_text(TINY_TASK)
    return f"{path}:Tiny"


@pytest.fixture
def config(tiny):
    """A comparison of a second or so."""
    return CompareConfig(
        tasks=(tiny,),
        methods=("plain", "ema:decay=0.9", "lawa", "lookahead:k=3", "switch-ema"),
        seeds=2,
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests of optimizers that other packages define: the engine does without."""
    names = re.compile(rf"\b({'|'.join(ELSEWHERE)})\b")
    for item in items:
        case = getattr(item, "callspec", None)
        values = "" if case is None else str(case.params)
        if "layer_decay" in item.name or names.search(values):
            item.add_marker(pytest.mark.zoo)
