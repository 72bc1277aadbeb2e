"""Training steps with ``switch_ema.audit`` against the same steps without, interleaved.

    python benchmarks/audit.py [--repeats 8]

Processor time of blocks of 50 steps (forward, backward, optimizer, EMA) on noise: each
has one check, as after the first 20 steps. A step takes many times as long as a check,
so the time inside the audit's hook is also measured by itself.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import records
import torch
from rich.console import Console
from rich.table import Table
from timing import Repeats, interleave, summarize
from torch import Tensor, nn
from torch.optim import Optimizer

import switch_ema
from switch_ema import EMA
from switch_ema.zoo.models import image_network

PLAIN, AUDITED = "without", "with audit"
STEPS = 50
"""In a block; the default of ``every``."""

Training = tuple[nn.Module, Optimizer, Callable[[], Tensor]]


def resnet18() -> Training:
    model = image_network("resnet18", channels=3, side=32, outputs=10)
    images, labels = torch.randn(2, 3, 32, 32), torch.randint(10, (2,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    return model, optimizer, lambda: nn.functional.cross_entropy(model(images), labels)


def gpt() -> Training:
    """Four layers of width 128, 64 tokens in each of 4 texts."""
    layer = nn.TransformerEncoderLayer(128, 4, 512, batch_first=True, dropout=0.0)
    model = nn.Sequential(
        nn.Embedding(1000, 128), nn.TransformerEncoder(layer, 4), nn.Linear(128, 1000)
    )
    tokens = torch.randint(1000, (4, 65))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def loss() -> Tensor:
        logits = model(tokens[:, :-1]).flatten(0, 1)
        return nn.functional.cross_entropy(logits, tokens[:, 1:].flatten())

    return model, optimizer, loss


CASES: dict[str, Callable[[], Training]] = {
    "ResNet-18, CIFAR size, SGD, batches of 2": resnet18,
    "GPT, 4 layers of width 128, AdamW, 256 tokens": gpt,
}


class Audited:
    """One training whose audit can be switched off.

    Two copies of a model differ in speed by their places in memory, and by more than
    an audit costs.
    """

    def __init__(self, case: str) -> None:
        torch.manual_seed(0)
        model, self._optimizer, self._loss = CASES[case]()
        ema = EMA(model, self._optimizer)
        audit = switch_ema.audit(model, self._optimizer, ema, every=STEPS)
        check = audit._before_step
        self._is_on = True
        self.inside: list[float] = []
        """Seconds inside the audit, by block."""

        def timed() -> None:
            if self._is_on:
                began = time.process_time()
                check()
                self.inside[-1] += time.process_time() - began

        audit._before_step = timed  # type: ignore[method-assign]

    def train(self, is_on: bool, steps: int = STEPS) -> None:
        self._is_on = is_on
        if is_on:
            self.inside.append(0.0)
        for _ in range(steps):
            self._optimizer.zero_grad()
            self._loss().backward()
            self._optimizer.step()


def measure(case: str, repeats: int) -> dict[str, Any]:
    training = Audited(case)
    # The first 20 steps are all checked. Later checks then fall into the middle of a
    # block: a check compares two consecutive steps.
    training.train(True, steps=STEPS * 3 // 2)
    into = Repeats()
    blocks = {
        PLAIN: lambda: training.train(False),
        AUDITED: lambda: training.train(True),
    }
    interleave(blocks, repeats, into, lambda: None, time.process_time)
    result: dict[str, Any] = {n: asdict(t) for n, t in summarize(into, PLAIN).items()}
    first, *later = training.inside
    inside = statistics.median(later)
    block_seconds = statistics.median(seconds[AUDITED] for seconds in into.seconds)
    result["inside"] = {
        "share": inside / block_seconds,
        "check_ms": 1e3 * inside,
        "first_steps_ms": 1e3 * first,
    }
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=8)
    parser.add_argument("--json", type=Path, default=records.RESULTS / "audit.json")
    arguments = parser.parse_args()
    results = records.describe_run()
    results["repeats"] = arguments.repeats
    results["audits"] = {case: measure(case, arguments.repeats) for case in CASES}
    table = Table("training", "ms per step", "ratio", "quartiles", "inside the audit")
    for case, found in results["audits"].items():
        low, high = found[AUDITED]["quartiles"]
        table.add_row(
            case,
            f"{found[AUDITED]['ms'] / STEPS:.1f}",
            f"{found[AUDITED]['ratio']:.4f}",
            f"{low:.4f} to {high:.4f}",
            f"{found['inside']['share']:.3%}",
        )
    Console().print(table)
    records.write(results, arguments.json)


if __name__ == "__main__":
    main()
