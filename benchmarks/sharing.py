"""Cost of a comparison in plain trainings; passive methods share one training.

Trains a CIFAR-size ResNet-18 for a few steps as `switch-ema compare` would: plain
alone, plain with four EMA decays, SWA and LAWA, and two Switch EMA settings.
"""

import argparse
import statistics
import tempfile
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from switch_ema.bench.plan.cells import Cell, make_plan
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.task import Batches, Metric, Task
from switch_ema.bench.train.context import RunContext
from switch_ema.bench.train.loop import train_cell
from switch_ema.zoo.models import image_network

METHODS = (
    "plain",
    "ema:decay=0.9",
    "ema:decay=0.99",
    "ema:decay=0.999",
    "ema:decay=0.9999",
    "swa",
    "lawa",
    "switch-ema:decay=0.99",
    "switch-ema:decay=0.999",
)


class CifarSized(Task):
    """Noise of CIFAR's size: the cost of a step does not depend on the pixels."""

    metrics = (Metric(name="loss", higher_is_better=False),)

    def __init__(self, seed: int, *, steps: int = 10, batch: int = 64) -> None:
        super().__init__(seed)
        generator = torch.Generator().manual_seed(seed)
        self.batch = batch
        self.x = torch.randn(steps * batch, 3, 32, 32, generator=generator)
        self.y = torch.randint(10, (steps * batch,), generator=generator)

    def model(self) -> nn.Module:
        return image_network("resnet18", channels=3, side=32, outputs=10)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def train_loader(self, epoch: int) -> Batches:
        return Batches((self.x, self.y), self.batch, self.seed, epoch=epoch)

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        return {"loss": self.loss(model, (self.x[:100], self.y[:100])).item()}


def cells(methods: tuple[str, ...], task: str, epochs: int) -> list[Cell]:
    config = CompareConfig(tasks=(task,), methods=methods, seeds=1, epochs=epochs)
    return make_plan(config)


def measure(group: list[Cell]) -> tuple[float, float]:
    """Return the seconds of training and evaluation, in a separate folder."""
    with tempfile.TemporaryDirectory() as folder:
        results = [train_cell(cell, RunContext(Path(folder), "cpu")) for cell in group]
    return (
        sum(result.train_seconds for result in results),
        sum(result.evaluate_seconds for result in results),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", default=f"{__file__}:CifarSized")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    plain = cells(("plain",), arguments.task, arguments.epochs)
    everything = cells(METHODS, arguments.task, arguments.epochs)
    rows = []
    for _ in range(arguments.repeats):  # interleaved, so load affects both
        rows.append((measure(plain), measure(everything)))
    train = [whole[0] / (3 * alone[0]) for alone, whole in rows]
    evaluate = [whole[1] / (3 * alone[1]) for alone, whole in rows]
    table = Table("", "in 3 plain trainings", title=f"{len(METHODS)} methods")
    table.add_row("training", f"{statistics.median(train):.3f}")
    table.add_row("evaluation", f"{statistics.median(evaluate):.3f}")
    Console().print(table)


if __name__ == "__main__":
    main()
