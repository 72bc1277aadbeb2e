"""Tuning on a validation split, with the same budget for each method."""

import math
import statistics
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from switch_ema.bench.errors import UsageError
from switch_ema.bench.plan.cells import Cell, make_plan
from switch_ema.bench.plan.config import LEARNING_RATE, CompareConfig
from switch_ema.bench.plan.points import (
    TUNED,
    UNTUNED,
    Point,
    check_varied,
    with_factor,
    with_value,
)
from switch_ema.bench.results.store import Results
from switch_ema.bench.spec import parse_method_spec, parse_variation
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
"""The main option of each method, likeliest values first.

SWA's are shares of the training, which become whole epochs.
"""

FACTORS = (1, 0.5, 2, 0.25, 4)
"""Factors of the learning rate that are tried if no rates are given."""

SEEDS, STACKED_SEEDS = 3, 8
"""Seeds of tuning: more where they are trained at once, and cost little."""
OFFSET = 100_000
"""Tuning has seeds of its own, far from those of the comparison."""


def tune(
    config: CompareConfig,
    plan: list[Cell],
    results: Results,
    train: Callable[[list[Cell]], None],
) -> tuple[str, ...]:
    """Choose a setting of each method by its mean at the last epoch on validation data.

    With several tasks the mean rank over tasks decides, so that no task's scale does.
    Every method has the same candidates.

    Args:
        config: what is compared.
        plan: the cells of the comparison.
        results: where ``train`` stores what it has trained.
        train: trains cells.
    """
    candidates = _all_candidates(config, plan)
    trial, cells = _trial(config, plan, candidates)
    train(cells)
    ranks = _mean_ranks(trial, results, cells)
    return tuple(min(found, key=ranks.__getitem__) for found in candidates.values())


def tuned_points(config: CompareConfig, chosen: tuple[str, ...]) -> list[Point]:
    """Return what is compared: the methods as they were typed, and as chosen."""
    return [
        Point(UNTUNED, config.tasks, config.methods),
        Point(TUNED, config.tasks, chosen),
    ]


def plan_trials(config: CompareConfig, plan: list[Cell]) -> list[Cell]:
    """Return the trainings of tuning, which come before those of the comparison."""
    return _trial(config, plan, _all_candidates(config, plan))[1]


def _trial(
    config: CompareConfig, plan: list[Cell], candidates: dict[str, list[str]]
) -> tuple[CompareConfig, list[Cell]]:
    is_stacked = any(len(cell.seeds) > 1 for cell in plan)
    trial = replace(
        config,
        methods=tuple(dict.fromkeys(c for found in candidates.values() for c in found)),
        tune=0,
        seeds=STACKED_SEEDS if is_stacked else SEEDS,
        first_seed=config.first_seed + OFFSET,
    )
    return trial, [replace(cell, split="validation") for cell in make_plan(trial)]


def check_tuning(config: CompareConfig, plan: list[Cell]) -> None:
    """Refuse what cannot be tuned, before anything is trained."""
    for task in config.tasks:
        task_class, spec = load_task_class(task)
        if not takes_split(task_class):
            raise UsageError(
                f"{spec.name} cannot be tuned: its constructor takes no keyword split."
            )
    if isinstance(config.tune, str) and config.tune != LEARNING_RATE:
        check_varied(config, parse_variation(config.tune)[0])
    owners: dict[str, str] = {}
    for text, found in _all_candidates(config, plan).items():
        for candidate in map(str, map(parse_method_spec, found)):
            if owners.setdefault(candidate, text) != text:
                raise UsageError(
                    f"tuning would try {candidate} both for {owners[candidate]} and "
                    f"for {text}; leave one of them out."
                )


def _all_candidates(config: CompareConfig, plan: list[Cell]) -> dict[str, list[str]]:
    """List what is tried for each method."""
    # A start that suits the shortest training lies within every other one, too.
    epochs = min(cell.recipe.epochs for cell in plan)
    methods, tuned = config.methods, config.tune
    if isinstance(tuned, int):
        return {text: _main_candidates(text, tuned, epochs) for text in methods}
    if tuned == LEARNING_RATE:
        rows = [[with_factor(text, factor) for text in methods] for factor in FACTORS]
    else:
        option, values = parse_variation(tuned)
        rows = [list(with_value(methods, option, value)) for value in values]
    columns = zip(*rows, strict=True)
    return {
        text: list(dict.fromkeys(column))
        for text, column in zip(methods, columns, strict=True)
    }


def _main_candidates(text: str, budget: int, epochs: int) -> list[str]:
    """List values of a method's main option."""
    spec = parse_method_spec(text)
    option, values = KNOBS.get(spec.name, ("", ()))
    if not values or option in spec.options:
        return [text]
    if budget > len(values):
        raise UsageError(f"tune must be at most {len(values)}, got {budget}.")
    if spec.name == "swa":
        values = tuple(int(share * epochs) for share in values)
    return [
        str(replace(spec, options={**spec.options, option: v})) for v in values[:budget]
    ]


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
