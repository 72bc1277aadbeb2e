"""What a comparison costs, in plain trainings: methods that read share one.

Trains a CIFAR-size ResNet-18 for a few steps as `switch-ema compare` would: plain
alone, plain with four EMA decays, SWA and LAWA, and two Switch EMA settings.
"""

import argparse
import statistics
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from switch_ema.bench.config import CompareConfig
from switch_ema.bench.plan import Cell, make_plan
from switch_ema.bench.train import Place, train_cell

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


def cells(methods: tuple[str, ...], task: str, epochs: int) -> list[Cell]:
    config = CompareConfig(tasks=(task,), methods=methods, seeds=1, epochs=epochs)
    return make_plan(config)


def measure(group: list[Cell]) -> tuple[float, float]:
    """Return seconds of training and of evaluation, in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        results = [train_cell(cell, Place(Path(folder), "cpu")) for cell in group]
    return (
        sum(result.train_seconds for result in results),
        sum(result.evaluate_seconds for result in results),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    task = "images:dataset=digits,network=resnet18,size=192,batch=64"
    parser.add_argument("--task", default=task)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    plain = cells(("plain",), arguments.task, arguments.epochs)
    everything = cells(METHODS, arguments.task, arguments.epochs)
    rows = []
    for _ in range(arguments.repeats):  # interleaved, so that noise hits both
        rows.append((measure(plain), measure(everything)))
    train = [whole[0] / (3 * alone[0]) for alone, whole in rows]
    evaluate = [whole[1] / (3 * alone[1]) for alone, whole in rows]
    table = Table("", "in 3 plain trainings", title=f"{len(METHODS)} methods")
    table.add_row("training", f"{statistics.median(train):.3f}")
    table.add_row("evaluation", f"{statistics.median(evaluate):.3f}")
    Console().print(table)


if __name__ == "__main__":
    main()
