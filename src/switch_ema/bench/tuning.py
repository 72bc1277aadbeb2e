"""Tuning on a validation split, with the same budget for each method."""

import statistics
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from switch_ema.bench.config import CompareConfig
from switch_ema.bench.plan import Cell, make_plan
from switch_ema.bench.results import Results
from switch_ema.bench.spec import Spec, UsageError, parse_spec
from switch_ema.bench.tasks import load_task_class

KNOBS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "ema": ("decay", (0.99, 0.999, 0.9, 0.9999)),
    "switch-ema": ("decay", (0.99, 0.999, 0.9, 0.9999)),
    "swa": ("start", (0.75, 0.5, 0.875, 0.25)),
    "lawa": ("k", (5, 3, 10, 20)),
    "lookahead": ("k", (100, 5, 20, 500)),
    "pswa": ("period", (5, 2, 10, 20)),
}
"""The one option that is tuned per method, likeliest values first."""

SEEDS = 3
OFFSET = 100_000
"""Tuning has seeds of its own, far from those of the comparison."""


def tune(
    config: CompareConfig, results: Results, train: Callable[[list[Cell]], None]
) -> CompareConfig:
    """Choose each method's option by its mean at the last epoch on validation data.

    With several tasks the mean rank over tasks decides, so that no task's scale does.
    """
    candidates = {text: _candidates(text, config.tune) for text in config.methods}
    flat = tuple(dict.fromkeys(c for found in candidates.values() for c in found))
    trial = replace(
        config,
        methods=flat,
        tune=0,
        seeds=SEEDS,
        first_seed=config.first_seed + OFFSET,
    )
    cells = [replace(cell, split="validation") for cell in make_plan(trial)]
    train(cells)
    ranks = _mean_ranks(trial, results, cells)
    chosen = tuple(min(found, key=ranks.__getitem__) for found in candidates.values())
    return replace(config, methods=chosen, tune=0)


def _candidates(text: str, budget: int) -> list[str]:
    spec = parse_spec(text)
    option, values = KNOBS.get(spec.name, ("", ()))
    if not values or option in spec.options:
        return [text]
    if budget > len(values):
        raise UsageError(f"tune must be at most {len(values)}, got {budget}.")
    return [str(Spec(spec.name, {**spec.options, option: v})) for v in values[:budget]]


def _mean_ranks(
    trial: CompareConfig, results: Results, cells: list[Cell]
) -> dict[str, float]:
    ranks: dict[str, list[int]] = {}
    for task in trial.tasks:
        metric = load_task_class(task)[0].metrics[0]
        scores: dict[str, list[float]] = {}
        for cell in (cell for cell in cells if cell.task == task):
            for method, _, name, values in results.curves(cell):
                if name == metric.name:
                    scores.setdefault(method, []).append(values[-1])
        sign = -1 if metric.higher_is_better else 1
        ordered = sorted(scores, key=lambda m: sign * statistics.fmean(scores[m]))
        for rank, method in enumerate(ordered):
            ranks.setdefault(method, []).append(rank)
    return {method: statistics.fmean(found) for method, found in ranks.items()}
