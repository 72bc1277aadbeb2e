"""Tunes methods on a validation split, each with the same budget."""

import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from switch_ema.bench.errors import UsageError
from switch_ema.bench.loading import load_task_class, takes_split
from switch_ema.bench.plan.cells import Cell, in_order, make_plan
from switch_ema.bench.plan.config import LEARNING_RATE, CompareConfig
from switch_ema.bench.plan.sweep_points import (
    TUNED,
    UNTUNED,
    SweepPoint,
    check_varied,
    with_factor,
    with_value,
)
from switch_ema.bench.recipe import is_usable
from switch_ema.bench.results.store import Results
from switch_ema.bench.spec import parse_method_spec, parse_variation

_KNOBS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "ema": ("decay", (0.99, 0.999, 0.9, 0.9999)),
    "switch-ema": ("decay", (0.99, 0.999, 0.9, 0.9999)),
    "swa": ("start", (0.75, 0.5, 0.875, 0.25)),
    "lawa": ("k", (5, 3, 10, 20)),
    "lookahead": ("k", (100, 5, 20, 500)),
    "pswa": ("period", (5, 2, 10, 20)),
}
"""The main option of each method, with the most promising values first.

SWA's values are shares of the training, converted to epochs.
"""

FACTORS = (1, 0.5, 2, 0.25, 4)
"""Learning rate factors to try if no rates are given."""

SEEDS, STACKED_SEEDS = 3, 8
"""Seeds used for tuning; stacked seeds are cheap, so there are more of them."""
_OFFSET = 100_000
"""Offset of the tuning seeds, which must not overlap those of the comparison."""


def tune(
    config: CompareConfig,
    plan: list[Cell],
    results: Results,
    train: Callable[[list[Cell]], None],
) -> dict[str, tuple[str, ...]]:
    """Choose a setting of each method for each task, on validation data.

    The best mean at the last epoch wins. Every method has the same candidates.

    Args:
        config: the comparison.
        plan: cells of the comparison.
        results: store that ``train`` writes to.
        train: trains cells.
    """
    cells = plan_trials(config, plan)
    train(cells)
    chosen = {}
    for task in config.tasks:
        candidates = _all_candidates(config, plan, task)
        losses = _losses(task, results, cells)
        # min() returns the first of equal candidates, which is the most promising.
        chosen[task] = tuple(
            min(found, key=lambda candidate: losses.get(candidate, math.inf))
            for found in candidates.values()
        )
    return chosen


def tuned_points(
    config: CompareConfig, chosen: Mapping[str, tuple[str, ...]]
) -> list[SweepPoint]:
    """Return the points to compare: methods as typed and as chosen."""
    return [
        point
        for task in config.tasks
        for point in (
            SweepPoint(UNTUNED, task, task, config.methods),
            SweepPoint(TUNED, task, task, chosen[task]),
        )
    ]


def plan_trials(config: CompareConfig, plan: list[Cell]) -> list[Cell]:
    """Plan the tuning trials, which run before the comparison."""
    cells: list[Cell] = []
    for task in config.tasks:
        candidates = _all_candidates(config, plan, task).values()
        # Extensions must not change the trials, nor the settings chosen by them.
        firsts = [cell for cell in plan if cell.seeds[0] in config.seeds_by_round[0]]
        is_stacked = any(len(cell.seeds) > 1 for cell in firsts if cell.task == task)
        trial = replace(
            config,
            tasks=(task,),
            methods=tuple(dict.fromkeys(c for found in candidates for c in found)),
            tune=0,
            seeds=STACKED_SEEDS if is_stacked else SEEDS,
            first_seed=config.first_seed + _OFFSET,
            rounds=(),
        )
        cells += (replace(cell, split="validation") for cell in make_plan(trial))
    return in_order(cells)


def check_tuning(config: CompareConfig, plan: list[Cell]) -> None:
    """Refuse settings that cannot be tuned, before anything is trained."""
    if isinstance(config.tune, str) and config.tune != LEARNING_RATE:
        check_varied(config, parse_variation(config.tune)[0])
    for task in config.tasks:
        task_class, spec = load_task_class(task)
        if not takes_split(task_class):
            raise UsageError(
                f"{spec.name} cannot be tuned: its constructor has no keyword split."
            )
        _check_candidates(_all_candidates(config, plan, task))


def _check_candidates(candidates: Mapping[str, list[str]]) -> None:
    """Refuse a candidate shared by two methods, whose results would collide."""
    owners: dict[str, str] = {}
    for text, found in candidates.items():
        for candidate in map(str, map(parse_method_spec, found)):
            if owners.setdefault(candidate, text) != text:
                raise UsageError(
                    f"tuning would try {candidate} for both {owners[candidate]} and "
                    f"{text}; leave one of them out."
                )


def _all_candidates(
    config: CompareConfig, plan: list[Cell], task: str
) -> dict[str, list[str]]:
    """List the candidates of each method on a task."""
    methods, tuned = config.methods, config.tune
    if isinstance(tuned, int):
        epochs = next(cell.recipe.epochs for cell in plan if cell.task == task)
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
    """List candidates for a method's main option."""
    spec = parse_method_spec(text)
    option, values = _KNOBS.get(spec.name, ("", ()))
    if not values or option in spec.options:
        return [text]
    if budget > len(values):
        raise UsageError(f"tune must be at most {len(values)}, got {budget}.")
    if spec.name == "swa":
        values = tuple(int(share * epochs) for share in values)
    return [
        str(replace(spec, options={**spec.options, option: v})) for v in values[:budget]
    ]


def _losses(task: str, results: Results, cells: list[Cell]) -> dict[str, float]:
    """Return the mean loss of each candidate on a task; lower is better."""
    task_class, spec = load_task_class(task)
    metric = task_class.metrics_for(spec.options)[0]
    scores: dict[str, list[float]] = {}
    for cell in (cell for cell in cells if cell.task == task):
        for method, _, name, values in results.curves(cell):
            if name == metric.name:
                scores.setdefault(method, []).append(values[-1])
    sign = -1 if metric.higher_is_better else 1
    return {method: _loss(values, sign) for method, values in scores.items()}


def _loss(values: list[float], sign: int) -> float:
    """Return the mean, signed so that lower is better; infinity if one is missing."""
    if not all(map(is_usable, values)):
        return math.inf
    return sign * statistics.fmean(values)
