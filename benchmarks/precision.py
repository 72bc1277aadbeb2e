"""Low precision: time and memory against float32, and accuracy of bfloat16 shadows.

    python benchmarks/precision.py [--models deit_s] [--repeats 24] [--steps 10000]

The first table times models and shadows of each precision, interleaved, against the
float32 model with its float32 shadow. The second compares a bfloat16 shadow with a
float32 one on the same live weights, and with one rounded to nearest at each update.
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import models
import records
import torch
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits
from timing import Repeats, interleave, summarize
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from switch_ema import EMA, SwitchEMA, constant

DECAY = 0.9999
EXACT = "float32 model, float32 shadow"
CASES = {
    EXACT: (torch.float32, torch.float32),
    "float32 model, bfloat16 shadow": (torch.float32, torch.bfloat16),
    "bfloat16 model, float32 shadow": (torch.bfloat16, torch.float32),
    "bfloat16 model, bfloat16 shadow": (torch.bfloat16, torch.bfloat16),
    "float16 model, float32 shadow": (torch.float16, torch.float32),
    "float16 model, bfloat16 shadow": (torch.float16, torch.bfloat16),
}
OPERATIONS = ("update", "switch", "averaged")

Call = Callable[[], object]


def calls_of(sema: SwitchEMA) -> dict[str, Call]:
    def averaged() -> None:
        with sema.averaged():
            pass

    return dict(zip(OPERATIONS, (sema.update, sema.switch, averaged), strict=True))


def measure_cost(name: str, repeats: int) -> dict[str, Any]:
    averagers = {
        case: SwitchEMA(
            models.build(name).to(model), decay=constant(DECAY), dtype=shadow
        )
        for case, (model, shadow) in CASES.items()
    }
    result: dict[str, Any] = {case: {} for case in CASES}
    for case, averager in averagers.items():
        shadow = averager.state_dict()["shadow"].values()
        result[case]["shadow_bytes"] = sum(t.numel() * t.element_size() for t in shadow)
    for operation in OPERATIONS:
        into = Repeats()
        calls = {case: calls_of(sema)[operation] for case, sema in averagers.items()}
        interleave(calls, repeats, into, lambda: None)
        for case, timing in summarize(into, EXACT).items():
            result[case][operation] = asdict(timing)
    return result


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def drift(model: nn.Module, steps: int) -> Iterator[None]:
    """Move all weights steadily, by one standard deviation in total."""
    speeds = [p.std() * torch.randn_like(p) / steps for p in model.parameters()]
    for _ in range(steps):
        for parameter, speed in zip(model.parameters(), speeds, strict=True):
            parameter.data += speed
        yield


def noise(model: nn.Module, steps: int) -> Iterator[None]:
    """Keep the weights constant except for fresh noise of a tenth at each step.

    Dithering benefits from updates that resemble the previous one; here none does.
    """
    start = [p.detach().clone() for p in model.parameters()]
    for _ in range(steps):
        for parameter, center in zip(model.parameters(), start, strict=True):
            parameter.data = center + 0.1 * center.std() * torch.randn_like(center)
        yield


def training(
    model: nn.Module, steps: int, optimizer: type[Optimizer], **options: Any
) -> Iterator[None]:
    """Train on scikit-learn's digits with small batches and a constant rate."""
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16
    labels = torch.tensor(digits.target)
    stepper = optimizer(model.parameters(), **options)
    for _ in range(steps):
        batch = torch.randint(len(images), (16,))
        nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
        stepper.step()
        stepper.zero_grad()
        yield


PATHS: dict[str, Callable[[nn.Module, int], Iterator[None]]] = {
    "digits, SGD 0.05, momentum 0.9": partial(
        training, optimizer=SGD, lr=0.05, momentum=0.9
    ),
    "digits, AdamW 0.001": partial(training, optimizer=AdamW, lr=1e-3),
    "steady drift": drift,
    "noise of 10% at each step": noise,
}


def measure_accuracy(path: str, steps: int) -> dict[str, float]:
    """Return the largest errors, relative to the norm of the float32 shadow."""
    model = network()
    exact = EMA(model, decay=constant(DECAY))
    coarse = EMA(model, decay=constant(DECAY), dtype=torch.bfloat16)
    rounded = [p.detach().bfloat16() for p in model.parameters()]
    seen = []
    for step, _ in enumerate(PATHS[path](model, steps), 1):
        exact.update()
        coarse.update()
        live = [p.detach().bfloat16() for p in model.parameters()]
        torch._foreach_lerp_(rounded, live, 1 - DECAY)
        if step % 100 == 0 or step == steps:
            truth, ours = (list(e.averaged_tensors().values()) for e in (exact, coarse))
            seen.append(errors(truth, ours, rounded))
    return {name: max(one[name] for one in seen) for name in seen[0]}


def errors(
    truth: list[Tensor], ours: list[Tensor], rounded: list[Tensor]
) -> dict[str, float]:
    pairs = zip(ours, truth, strict=True)
    return {
        "bfloat16": relative_error(ours, truth),
        "worst_tensor": max(relative_error([a], [b]) for a, b in pairs),
        "rounded_to_nearest": relative_error(rounded, truth),
    }


def relative_error(found: list[Tensor], truth: list[Tensor]) -> float:
    error = sum(
        (a - b).square().sum().item() for a, b in zip(found, truth, strict=True)
    )
    return float((error / sum(b.square().sum().item() for b in truth)) ** 0.5)


def show(results: dict[str, Any], console: Console) -> None:
    for model, cases in results["models"].items():
        table = Table(model, "shadow", *OPERATIONS)
        table.caption = "multiples of the first line; median time in brackets"
        unit = cases[EXACT]["shadow_bytes"]
        for case, measured in cases.items():
            size = measured["shadow_bytes"]
            timings = (measured[operation] for operation in OPERATIONS)
            table.add_row(
                case,
                f"{size / unit:.2f} ({size / 1e6:.0f} MB)",
                *(f"{t['ratio']:.2f} ({t['ms']:.2f} ms)" for t in timings),
            )
        console.print(table)
    steps = results["steps"]
    table = Table("live weights", "bfloat16", "its worst tensor", "rounded to nearest")
    table.title = f"Largest error against float32, {steps} steps at decay {DECAY}"
    for path, found in results["accuracy"].items():
        table.add_row(path, *(f"{error:.2%}" for error in found.values()))
    table.caption = "relative to the norm of the float32 shadow"
    console.print(table)
    console.print(records.conditions(results))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    names = list(models.MODELS)
    parser.add_argument("--models", nargs="+", choices=names, default=["deit_s"])
    parser.add_argument("--repeats", type=int, default=24)
    parser.add_argument("--steps", type=int, default=10_000, help="of the accuracy")
    parser.add_argument("--json", type=Path, default=records.RESULTS / "precision.json")
    arguments = parser.parse_args()
    results = records.describe_run()
    results |= {"decay": DECAY, "steps": arguments.steps, "repeats": arguments.repeats}
    results["models"] = {
        name: measure_cost(name, arguments.repeats) for name in arguments.models
    }
    torch.set_num_threads(1)  # the rest is too small to use several cores
    results["accuracy"] = {
        path: measure_accuracy(path, arguments.steps) for path in PATHS
    }
    records.write(results, arguments.json)
    show(results, Console(width=120))


if __name__ == "__main__":
    main()
