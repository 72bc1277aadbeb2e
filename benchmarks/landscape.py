"""Landscapes: many points at once against one by one.

    python benchmarks/landscape.py [--repeats 7] [--threads 1]

Measures a line of 41 points both ways, interleaved, for models and batches from tiny
to medium. "default" is the automatic choice; it should be near the better of the two
everywhere.
"""

import argparse
from functools import partial

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from timing import Repeats, interleave, summarize
from torch import nn

from switch_ema.analysis.landscape.directions import parameters_of, random_directions
from switch_ema.analysis.landscape.evaluation import Evaluation, evaluate_points
from switch_ema.analysis.probes import Probe, classification
from switch_ema.zoo.models import mlp, small_cnn

POINTS = np.linspace(-1, 1, 41)[:, None]
WAYS = {"loop": False, "vectorised": True, "default": None}


class Encoder(nn.Module):
    """One transformer layer over a sequence of 16 vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.head = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.head(self.body(x).mean(1))
        return output


def cases() -> dict[str, tuple[nn.Module, Probe]]:
    def data(shape: tuple[int, ...], size: int, count: int) -> Probe:
        make = torch.Generator().manual_seed(0)
        batches = [
            (
                torch.randn(size, *shape, generator=make),
                torch.randint(10, (size,), generator=make),
            )
            for _ in range(count)
        ]
        return Probe(classification, batches)

    perceptron = mlp(64, 64, 64, 10)
    return {
        "MLP 64-64-64-10, 63 batches of 16": (perceptron, data((64,), 16, 63)),
        "MLP 64-64-64-10, 1 batch of 1000": (perceptron, data((64,), 1000, 1)),
        "CNN, 2 batches of 4": (small_cnn(1, 28, 10), data((1, 28, 28), 4, 2)),
        "CNN, 1 batch of 64": (small_cnn(1, 28, 10), data((1, 28, 28), 64, 1)),
        "encoder layer, 4 batches of 8": (Encoder(), data((16, 32), 8, 4)),
    }


def contest(model: nn.Module, probe: Probe, repeats: int) -> Repeats:
    (direction,) = random_directions(parameters_of(model), seed=0)
    measure = partial(
        evaluate_points, model, model.state_dict(), [direction], POINTS, [probe]
    )
    calls = {name: partial(measure, vectorise=way) for name, way in WAYS.items()}
    check({name: call() for name, call in calls.items()})
    into = Repeats()
    interleave(calls, repeats, into, tick=lambda: None)
    return into


def check(results: dict[str, Evaluation]) -> None:
    """Raise if the results of the two ways differ."""
    reference = results["loop"].values["loss"]
    for result in results.values():
        np.testing.assert_allclose(result.values["loss"], reference, rtol=1e-5)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    table = Table(
        "41 points",
        "loop, ms",
        "vectorised, ms",
        "loop / vectorised",
        "loop / default",
        "cores busy with others",
    )
    for name, (model, probe) in cases().items():
        repeats = contest(model, probe, arguments.repeats)
        # Inverse ratios within a repeat: how much faster each is.
        fast, chosen = summarize(repeats, "vectorised"), summarize(repeats, "default")
        table.add_row(
            name,
            f"{fast['loop'].ms:.1f}",
            f"{fast['vectorised'].ms:.1f}",
            f"{fast['loop'].ratio:.2f}",
            f"{chosen['loop'].ratio:.2f}",
            f"{repeats.quieter_load():.1f}",
        )
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
