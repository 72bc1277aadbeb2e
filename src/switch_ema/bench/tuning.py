"""Tunes methods on a validation split, each with the same budget."""

import json
import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import replace

from switch_ema.bench.errors import UsageError
from switch_ema.bench.loading import load_task_class, takes_split
from switch_ema.bench.plan.candidates import candidates_of
from switch_ema.bench.plan.cells import Cell, in_order, make_plan
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.plan.sweep_points import (
    TUNED,
    UNTUNED,
    SweepPoint,
    check_varied,
)
from switch_ema.bench.recipe import Metric, is_usable
from switch_ema.bench.results.store import Results
from switch_ema.bench.spec import parse_method_spec, parse_variations

SEEDS, STACKED_SEEDS = 3, 8
"""Seeds used for tuning; stacked seeds are cheap, so there are more of them."""
TRIALS = "validation values"
"""Metadata of a run: by task and candidate, the values that tuning chose by."""
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
    chosen, tried = {}, {}
    for task in config.tasks:
        candidates = _all_candidates(config, plan, task)
        scores = _scores(task, results, cells)
        tried[task] = {c: list(map(_storable, own)) for c, own in scores.items()}
        losses = _losses(task, scores)
        # min() returns the first of equal candidates, which is the most promising.
        chosen[task] = tuple(
            min(found, key=lambda candidate: losses.get(candidate, math.inf))
            for found in candidates.values()
        )
    results.set_meta(TRIALS, json.dumps(tried))
    return chosen


def _storable(value: float) -> float | None:
    """Return a value as JSON has it: seven digits, or null if it is not finite."""
    return float(f"{value:.7g}") if math.isfinite(value) else None


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
            deploy=None,
        )
        cells += (replace(cell, split="validation") for cell in make_plan(trial))
    return in_order(cells)


def check_tuning(config: CompareConfig, plan: list[Cell]) -> None:
    """Refuse settings that cannot be tuned, before anything is trained."""
    if isinstance(config.tune, str):
        for option, values in parse_variations(config.tune).items():
            if values:
                check_varied(config, option)
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
    epochs = next(cell.recipe.epochs for cell in plan if cell.task == task)
    grids = candidates_of(config, epochs)
    return {text: [*own] for text, own in zip(config.methods, grids, strict=True)}


def _deciding(task: str) -> Metric:
    task_class, spec = load_task_class(task)
    return task_class.metrics_for(spec.options)[0]


def _scores(task: str, results: Results, cells: list[Cell]) -> dict[str, list[float]]:
    """Return the validation values of each candidate on a task, one for each seed."""
    metric = _deciding(task)
    scores: dict[str, list[float]] = {}
    for cell in (cell for cell in cells if cell.task == task):
        for method, _, name, values in results.curves(cell):
            if name == metric.name:
                scores.setdefault(method, []).append(values[-1])
    return scores


def _losses(task: str, scores: Mapping[str, list[float]]) -> dict[str, float]:
    """Return the mean loss of each candidate on a task; lower is better."""
    sign = -1 if _deciding(task).higher_is_better else 1
    return {method: _loss(values, sign) for method, values in scores.items()}


def _loss(values: list[float], sign: int) -> float:
    """Return the mean, signed so that lower is better; infinity if one is missing."""
    if not all(map(is_usable, values)):
        return math.inf
    return sign * statistics.fmean(values)
