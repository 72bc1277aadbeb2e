"""A forward pass with the averaged weights, against the live ones.

    python benchmarks/teacher.py [--models resnet50 deit_s] [--batch 2] [--repeats 24]

Interleaved, without gradients, in training mode: the model, its average by
``averager.call``, inside ``averaged()``, and a second model with the averaged weights.
"""

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

import models
import records
import torch
from rich.console import Console
from rich.table import Table
from timing import Repeats, interleave, summarize
from torch import Tensor

from switch_ema import EMA

OWN = "the model itself"
CALL = "averager.call"


def measure(name: str, batch: int, repeats: int) -> dict[str, Any]:
    model = models.build(name)
    ema = EMA(model)
    ema.update()
    copied = ema.averaged_copy()
    images = torch.randn(batch, 3, 224, 224)

    def exchanged() -> Tensor:
        with ema.averaged():
            return model(images)  # type: ignore[no-any-return]

    calls = {
        OWN: lambda: model(images),
        CALL: lambda: ema.call(images),
        "inside averaged()": exchanged,
        "a second model": lambda: copied(images),
    }
    into = Repeats()
    with torch.no_grad():
        interleave(calls, repeats, into, lambda: None)
    timings = summarize(into, OWN)
    return {call: asdict(timing) for call, timing in timings.items()}


def show(results: dict[str, Any], console: Console) -> None:
    table = Table("model", "forward pass", "ms", "against the model's own", "quartiles")
    for model, timings in results["models"].items():
        for call, timing in timings.items():
            low, high = timing["quartiles"]
            cells = f"{timing['ms']:.1f}", f"{timing['ratio']:.3f}"
            table.add_row(model, call, *cells, f"{low:.3f} to {high:.3f}")
        table.add_section()
    console.print(table)
    console.print(records.conditions(results))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    default = ["resnet50", "deit_s"]
    parser.add_argument(
        "--models", nargs="+", choices=list(models.MODELS), default=default
    )
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=24)
    parser.add_argument("--json", type=Path, default=records.RESULTS / "teacher.json")
    arguments = parser.parse_args()
    results = records.describe_run() | {
        "batch": arguments.batch,
        "repeats": arguments.repeats,
    }
    results["models"] = {
        name: measure(name, arguments.batch, arguments.repeats)
        for name in arguments.models
    }
    records.write(results, arguments.json)
    show(results, Console(width=120))


if __name__ == "__main__":
    main()
