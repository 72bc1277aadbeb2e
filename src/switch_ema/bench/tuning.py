"""Tuning on a validation split, with the same budget for each method."""

import math
import statistics
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from switch_ema.bench.errors import UsageError
from switch_ema.bench.plan.cells import Cell, make_plan
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.results.store import Results
from switch_ema.bench.spec import Spec, parse_spec
from switch_ema.bench.tasks.loading import load_task_class, takes_split
from switch_ema.bench.usable import is_usable

KNOBS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "ema": ("decay", (0.99, 0.999, 0.9, 0.9999)),
    "switch-ema": ("decay", (0.99, 0.999, 0.9, 0.9999)),
    "swa": ("start", (0.75, 0.5, 0.875, 0.25)),
    "lawa": ("k", (5, 3, 10, 20)),
    "lookahead": ("k", (100, 5, 20, 500)),
    "pswa": ("period", (5, 2, 10, 20)),
}
"""The one option that is tuned per method, likeliest values first.

SWA's are shares of the training, which become whole epochs.
"""

SEEDS = 3
OFFSET = 100_000
"""Tuning has seeds of its own, far from those of the comparison."""


def tune(
    config: CompareConfig,
    plan: list[Cell],
    results: Results,
    train: Callable[[list[Cell]], None],
) -> CompareConfig:
    """Choose each method's option by its mean at the last epoch on validation data.

    With several tasks the mean rank over tasks decides, so that no task's scale does.

    Args:
        config: what is compared.
        plan: the cells of the comparison.
        results: where ``train`` stores what it has trained.
        train: trains cells.
    """
    candidates = _all_candidates(config, plan)
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


def check_tuning(config: CompareConfig, plan: list[Cell]) -> None:
    """Refuse what cannot be tuned, before anything is trained."""
    for task in config.tasks:
        task_class, spec = load_task_class(task)
        if not takes_split(task_class):
            raise UsageError(
                f"{spec.name} cannot be tuned: its constructor takes no keyword split."
            )
    owners: dict[str, str] = {}
    for text, found in _all_candidates(config, plan).items():
        for candidate in map(str, map(parse_spec, found)):
            if owners.setdefault(candidate, text) != text:
                raise UsageError(
                    f"tuning would try {candidate} both for {owners[candidate]} and "
                    f"for {text}; leave one of them out."
                )


def _all_candidates(config: CompareConfig, plan: list[Cell]) -> dict[str, list[str]]:
    """List what is tried for each method."""
    # A start that suits the shortest training lies within every other one, too.
    epochs = min(cell.recipe.epochs for cell in plan)
    return {text: _candidates(text, config.tune, epochs) for text in config.methods}


def _candidates(text: str, budget: int, epochs: int) -> list[str]:
    spec = parse_spec(text)
    option, values = KNOBS.get(spec.name, ("", ()))
    if not values or option in spec.options:
        return [text]
    if budget > len(values):
        raise UsageError(f"tune must be at most {len(values)}, got {budget}.")
    if spec.name == "swa":
        values = tuple(int(share * epochs) for share in values)
    return [str(Spec(spec.name, {**spec.options, option: v})) for v in values[:budget]]


def _mean_ranks(
    trial: CompareConfig, results: Results, cells: list[Cell]
) -> dict[str, float]:
    ranks: dict[str, list[int]] = {method: [] for method in trial.methods}
    for task in trial.tasks:
        task_class, spec = load_task_class(task)
        metric = task_class.metrics_for(spec.options)[0]
        scores: dict[str, list[float]] = {method: [] for method in ranks}
        for cell in (cell for cell in cells if cell.task == task):
            for method, _, name, values in results.curves(cell):
                # An optimizer may have brought a method along that is not tuned.
                if name == metric.name and method in scores:
                    scores[method].append(values[-1])
        sign = -1 if metric.higher_is_better else 1
        # Sorting is stable: equal ones stay in their order, the likeliest first.
        ordered = sorted(scores, key=lambda method: _loss(scores[method], sign))
        for rank, method in enumerate(ordered):
            ranks[method].append(rank)
    return {method: statistics.fmean(found) for method, found in ranks.items()}


def _loss(values: list[float], sign: int) -> float:
    """Return the mean, turned so that lower is better; without one, the worst."""
    if not values or not all(map(is_usable, values)):
        return math.inf
    return sign * statistics.fmean(values)
