"""One optimizer step with its average, against torch's fused step alone.

    python benchmarks/fused.py [--repeats 24] [--models deit_s resnet50]

"separate" is torch's fused optimizer followed by SwitchEMA's update; "in the step" is
our optimizer, which does both in one pass; "torch, cached lists" is a hand-written
version.
"""

import argparse
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import models
import records
import torch
from rich.console import Console
from rich.table import Table
from timing import Repeats, interleave, summarize
from torch import nn
from torch.optim import SGD, AdamW, Optimizer

from switch_ema import FusedAdamW, FusedSGD, SwitchEMA, constant

ALONE = "torch, fused, alone"
BUILDS = 3
"""How often to rebuild everything: memory addresses are worth a few percent."""

OPTIMIZERS: dict[str, tuple[type[Optimizer], type[Optimizer], dict[str, float]]] = {
    "AdamW": (AdamW, FusedAdamW, {"lr": 1e-4}),
    "SGD, momentum": (SGD, FusedSGD, {"lr": 1e-4, "momentum": 0.9}),
}


def with_gradients(name: str) -> nn.Module:
    model = models.build(name)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter) * 1e-3
    return model


def contestants(
    model: str,
    plain: type[Optimizer],
    fused: type[Optimizer],
    options: dict[str, float],
) -> dict[str, Callable[[], object]]:
    alone, by_hand, separate, together = (with_gradients(model) for _ in range(4))
    cached = plain(by_hand.parameters(), fused=True, **options)
    live = [p.detach() for p in by_hand.parameters()]
    shadow = [p.clone() for p in live]

    def step_and_lerp() -> None:
        cached.step()
        torch._foreach_lerp_(shadow, live, 0.001)

    after = plain(separate.parameters(), fused=True, **options)
    within = fused(together.parameters(), **options)
    SwitchEMA(separate, after, decay=constant(0.999))
    SwitchEMA(together, within, decay=constant(0.999))
    return {
        ALONE: plain(alone.parameters(), fused=True, **options).step,
        "torch, cached lists": step_and_lerp,
        "separate": after.step,
        "in the step": within.step,
    }


def measure(model: str, repeats: int) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, (plain, fused, options) in OPTIMIZERS.items():
        into = Repeats()
        for _ in range(BUILDS):
            calls = contestants(model, plain, fused, options)
            interleave(calls, max(1, repeats // BUILDS), into, lambda: None)
        timings = summarize(into, ALONE)
        result[name] = {contestant: asdict(t) for contestant, t in timings.items()}
    return result


def show(results: dict[str, Any], console: Console) -> None:
    table = Table("model", "optimizer", "contestant", "ms", "ratio", "quartiles")
    for model, optimizers in results["models"].items():
        for optimizer, timings in optimizers.items():
            for contestant, timing in timings.items():
                low, high = timing["quartiles"]
                numbers = f"{timing['ms']:.2f}", f"{timing['ratio']:.2f}"
                quartiles = f"{low:.2f} to {high:.2f}"
                table.add_row(model, optimizer, contestant, *numbers, quartiles)
            table.add_section()
    console.print(table)
    console.print(records.conditions(results))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=24)
    parser.add_argument("--models", nargs="+", default=["deit_s", "resnet50"])
    parser.add_argument("--json", type=Path, default=records.RESULTS / "fused.json")
    arguments = parser.parse_args()
    results = records.describe_run()
    results["models"] = {
        model: measure(model, arguments.repeats) for model in arguments.models
    }
    show(results, Console())
    records.write(results, arguments.json)


if __name__ == "__main__":
    main()
