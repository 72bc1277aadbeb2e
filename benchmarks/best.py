"""What the held-out data of ``Best`` cost, and what it gains.

    python benchmarks/best.py [--repeats 16] [--first-seed 7200]

Needs Fashion-MNIST in the data folder (``switch-ema data``). Two stacked trainings for
each task, with ``EMA(decay="auto")``: one on all training data, one without a fifth of
it, which chooses the epoch. Test accuracy in points, paired by seed:

- ``all data``: EMA on all data, at the last epoch;
- ``four fifths``: EMA without the held-out fifth, at the last epoch;
- ``best``: the same, at the epoch that ``Best`` chooses;
- ``refit``: EMA on all data, at that epoch.

Where labels are noisy, ``best`` and ``refit`` are measured twice: with clean held-out
labels, and with held-out labels that are as noisy as the others.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import records
import torch
from rich.console import Console
from rich.table import Table
from small_runs import (
    Pool,
    batches,
    correct,
    load_pool,
    make_model,
    make_optimizer,
    percent,
    split,
    train_step,
)
from torch import Tensor

from switch_ema import EMA
from switch_ema.analysis.intervals import half_width
from switch_ema.averaging.best import is_clearly_worse, standard_error

EPOCHS = 30


@dataclass(frozen=True)
class Task:
    """Data with clean or noisy labels."""

    data: str
    size: int
    batch: int
    noise: float = 0.0


TASKS = {
    "digits": Task("digits", 1000, 16),
    "digits, 30% of the labels redrawn": Task("digits", 1000, 16, noise=0.3),
    "Fashion-MNIST": Task("fashion_mnist", 2000, 32),
    "Fashion-MNIST, 30% of the labels redrawn": Task(
        "fashion_mnist", 2000, 32, noise=0.3
    ),
}

Curves = list[list[float]]
"""Accuracies by epoch and seed."""


def train(
    pool: Pool,
    seeds: Sequence[int],
    task: Task,
    size: int,
    epochs: int,
    sets: Mapping[str, tuple[Tensor, Tensor]],
) -> dict[str, Curves]:
    """Train on the first examples; return EMA's accuracies on each set."""
    data = split(pool, seeds, task.size, task.noise, 0)
    data = replace(data, train=data.train[:, :size], labels=data.labels[:, :size])
    model = make_model(pool, seeds)
    optimizer = make_optimizer("sgd", model, 0.05)
    ema = EMA(model, optimizer)
    per_epoch = size // task.batch
    curves: dict[str, Curves] = {name: [] for name in sets}
    order = batches(data, seeds, per_epoch * epochs, task.batch)
    for step, rows in enumerate(order, start=1):
        x, y = pool.x[data.train.gather(1, rows)], data.labels.gather(1, rows)
        train_step(model, optimizer, x, y)
        if step % per_epoch == 0:
            ema.end_epoch()
            with ema.averaged():
                for name, (rows, labels) in sets.items():
                    right = correct(model, pool.x[rows], labels)
                    curves[name].append(percent(right))
    return curves


def chosen_epoch(scores: Sequence[float], n: int) -> int:
    """Return the epoch, from 0, that ``Best`` shows after these accuracies."""
    best, last = max(scores), scores[-1]
    error = standard_error(last / 100, n) * 100
    worse = is_clearly_worse(last, best, error, higher_is_better=True)
    return scores.index(best) if worse else len(scores) - 1


def run(task: Task, seeds: Sequence[int], epochs: int) -> dict[str, list[float]]:
    """Return the test accuracy of each variant, one per seed."""
    pool = load_pool(task.data)
    data = split(pool, seeds, task.size, task.noise, 0)
    fifth = task.size // 5
    kept, held = task.size - fifth, data.train[:, task.size - fifth :]
    test = data.test, pool.y[data.test]
    labels = {"clean": pool.y[held]}
    if task.noise:
        labels["noisy"] = data.labels[:, kept:]
    whole = train(pool, seeds, task, task.size, epochs, {"test": test})["test"]
    sets = {"test": test} | {name: (held, own) for name, own in labels.items()}
    part = train(pool, seeds, task, kept, epochs, sets)
    found = {"all data": whole[-1], "four fifths": part["test"][-1]}
    for name in labels:
        columns = zip(*part[name], strict=True)  # by seed
        epoch = [chosen_epoch(scores, fifth) for scores in columns]
        where = "" if name == "clean" else ", noisy held-out labels"
        for variant, curves in (("best", part["test"]), ("refit", whole)):
            found[variant + where] = [curves[e][s] for s, e in enumerate(epoch)]
        found[f"epoch{where}"] = [e + 1.0 for e in epoch]
    return found


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and half the width of its 97% interval."""
    return fmean(values), half_width(stdev(values), len(values))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=16, help="seeds")
    parser.add_argument("--first-seed", type=int, default=7200)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--tasks", nargs="*", default=list(TASKS))
    parser.add_argument("--json", type=Path, default=records.RESULTS / "best.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.repeats)
    results: dict[str, Any] = records.describe_run()
    results |= {"epochs": arguments.epochs, "seeds": [*seeds], "tasks": {}}
    table = Table("task", "variant", "accuracy, or epoch", "difference from all data")
    for name in arguments.tasks:
        found = run(TASKS[name], seeds, arguments.epochs)
        results["tasks"][name] = {
            variant: [round(value, 4) for value in values]
            for variant, values in found.items()
        }
        for variant, values in found.items():
            pairs = zip(values, found["all data"], strict=True)
            mean, half = interval([own - other for own, other in pairs])
            is_compared = variant != "all data" and not variant.startswith("epoch")
            cell = f"{mean:+.2f} ± {half:.2f}" if is_compared else ""
            table.add_row(name, variant, f"{fmean(values):.2f}", cell)
    records.write(results, arguments.json)
    Console().print(table)


if __name__ == "__main__":
    main()
