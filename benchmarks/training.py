"""Epochs with Switch EMA against plain epochs, interleaved.

    python benchmarks/training.py [--repeats 12]

The steps are real (forward, backward, optimizer), the data is noise: a CIFAR-size
ResNet-18 with SGD, and the small CNN of the mnist1d task with AdamW.
"""

import argparse
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import records
import torch
from rich.console import Console
from rich.table import Table
from timing import Repeats, interleave, summarize
from torch import nn
from torch.optim import Optimizer

from switch_ema import SwitchEMA
from switch_ema.bench.loading import create_task
from switch_ema.zoo.models import image_network

PLAIN = "plain"


def resnet18() -> tuple[nn.Module, Optimizer, torch.Tensor]:
    model = image_network("resnet18", channels=3, side=32, outputs=10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    return model, optimizer, torch.randn(4, 32, 3, 32, 32)


def mnist1d() -> tuple[nn.Module, Optimizer, torch.Tensor]:
    task = create_task("mnist1d", (0,))
    model = task.model()
    batches = [batch[0] for batch in task.train_loader(0)]
    full = [batch for batch in batches if len(batch) == len(batches[0])]
    return model, task.optimizer(model), torch.stack(full)


CASES: dict[str, Callable[[], tuple[nn.Module, Optimizer, torch.Tensor]]] = {
    "ResNet-18, CIFAR size, SGD, 4 batches of 32": resnet18,
    "mnist1d CNN, AdamW": mnist1d,
}


def epoch(case: str, averages: bool) -> Callable[[], None]:
    torch.manual_seed(0)
    model, optimizer, batches = CASES[case]()
    sema = SwitchEMA(model, optimizer) if averages else None
    labels = torch.randint(10, (batches.shape[1],))

    def run() -> None:
        for batch in batches:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(batch), labels).backward()
            optimizer.step()
        if sema is not None:
            sema.end_epoch()

    return run


def measure(case: str, repeats: int) -> dict[str, Any]:
    into = Repeats()
    calls = {PLAIN: epoch(case, False), "with Switch EMA": epoch(case, True)}
    interleave(calls, repeats, into, lambda: None)
    return {name: asdict(t) for name, t in summarize(into, PLAIN).items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=12)
    parser.add_argument("--json", type=Path, default=records.RESULTS / "training.json")
    arguments = parser.parse_args()
    results = records.describe_run()
    results["trainings"] = {case: measure(case, arguments.repeats) for case in CASES}
    table = Table("training", "epoch", "ms", "ratio", "quartiles")
    for case, timings in results["trainings"].items():
        for name, timing in timings.items():
            low, high = timing["quartiles"]
            numbers = f"{timing['ms']:.1f}", f"{timing['ratio']:.3f}"
            table.add_row(case, name, *numbers, f"{low:.3f} to {high:.3f}")
        table.add_section()
    Console().print(table)
    records.write(results, arguments.json)


if __name__ == "__main__":
    main()
