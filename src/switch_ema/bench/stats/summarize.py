"""From stored results to a summary: pairing, statistics and cost, task by task."""

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from switch_ema.bench.optimizers.catalog import describe_optimizer
from switch_ema.bench.plan.candidates import places_of
from switch_ema.bench.plan.cells import Cell, labels_of
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.plan.sweep_points import (
    TUNED,
    UNTUNED,
    load_points,
    plan_points,
)
from switch_ema.bench.plan.task_snapshot import TaskFacts, change_of, load_facts
from switch_ema.bench.recipe import TRAINING_LOSS, Metric, rounded_metric
from switch_ema.bench.results.looks import load_looks, up_to_looks
from switch_ema.bench.results.samples import load_samples
from switch_ema.bench.results.store import (
    CHECKS,
    FINISHED,
    MEMORY,
    OF_STATE,
    OPTIMIZER,
    OPTIONS,
    ORIGIN,
    PROCESSOR,
    REPORTED,
    SHARE,
    TRAINED,
    TRIVIAL,
    Results,
)
from switch_ema.bench.spec import is_script
from switch_ema.bench.stats.paired import Curves, MethodResult, compare
from switch_ema.bench.stats.pairing import CellChecks, checked_curves, idle_methods
from switch_ema.bench.stats.summary import (
    ComparisonSummary,
    Cost,
    Sweep,
    TaskSummary,
)
from switch_ema.bench.stats.verdicts import smallest_effect_of

_DAMAGED = suppress(AttributeError, KeyError, TypeError, ValueError, RecursionError)
"""Errors from parsing a note in an unexpected format."""


def summarize(
    config: CompareConfig,
    results: Results,
    name: str,
    cells: Sequence[Cell] | None = None,
) -> ComparisonSummary:
    """Summarize the results so far.

    Args:
        config: the comparison.
        results: the stored results.
        name: the name of the run.
        cells: the plan; by default rebuilt from the run's stored facts about its tasks.
    """
    meta = results.meta()
    environment = {
        key.removeprefix("environment."): value
        for key, value in meta.items()
        if key.startswith("environment.")
    }
    facts = load_facts(meta, config.tasks)
    points = load_points(meta)
    cells = plan_points(config, points, facts) if cells is None else cells
    cells = up_to_looks(cells, load_looks(meta), config.first_seed)
    if not points:
        tasks = [
            _summarize_task(config, results, facts[task], _of_task(cells, task))
            for task in config.tasks
        ]
        return ComparisonSummary(name, _started(tasks), config.to_json(), environment)
    given = CompareConfig.from_json(meta["config"])
    sweeps = []
    for task in given.tasks:
        found = []
        settings = [point for point in points if point.typed == task]
        for point in settings:
            own = replace(config, tasks=(point.task,), methods=point.methods)
            names = dict(zip(point.methods, labels_of(given), strict=False))
            part = _of_task(cells, point.task, point.methods)
            summary = _summarize_task(own, results, facts[point.task], part)
            found.append(_renamed(summary, task, point.title, names))
        is_tuned = [point.title for point in settings] == [UNTUNED, TUNED]
        sweep = Sweep(task, _started(found), is_tuned)
        if is_tuned and sweep.points:
            epochs = sweep.points[0].epochs
            typed = dict(zip(given.methods, labels_of(given), strict=False))
            places = places_of(given, epochs, settings[-1].methods)
            by_label = {
                option: {typed[method]: place for method, place in own.items()}
                for option, own in places.items()
            }
            sweep = replace(sweep, places=by_label)
        sweeps.append(sweep)
    tasks = [task for sweep in sweeps for task in sweep.points]
    return ComparisonSummary(name, tasks, meta["config"], environment, sweeps)


def _started(tasks: list[TaskSummary]) -> list[TaskSummary]:
    """Omit tasks whose baseline has no value yet."""
    return [t for t in tasks if t.metrics and t.results[t.metrics[0].name]]


def _of_task(
    cells: Sequence[Cell], task: str, methods: Sequence[str] = ()
) -> list[Cell]:
    """Select the cells of a task, or those that train one of the methods."""
    return [
        cell
        for cell in cells
        if cell.task == task and (not methods or set(cell.methods) & set(methods))
    ]


def _renamed(
    summary: TaskSummary, task: str, point: str, names: Mapping[str, str]
) -> TaskSummary:
    """Rename the task and methods of a point as typed."""

    def typed(method: str) -> str:
        return names.get(method, method)

    return replace(
        summary,
        task=task,
        point=point,
        settings={name: full for full, name in names.items() if full != name},
        curves={
            metric: {typed(method): own for method, own in curves.items()}
            for metric, curves in summary.curves.items()
        },
        results={
            metric: [replace(result, method=typed(result.method)) for result in found]
            for metric, found in summary.results.items()
        },
        costs=[
            replace(cost, methods=tuple(names[m] for m in cost.methods if m in names))
            for cost in summary.costs
        ],
        trained={**summary.trained, "Setting": point},
        optimizers={typed(m): text for m, text in summary.optimizers.items()},
        options={typed(method): text for method, text in summary.options.items()},
        samples=tuple(replace(s, method=typed(s.method)) for s in summary.samples),
        training_losses={typed(m): own for m, own in summary.training_losses.items()},
        shares={typed(method): share for method, share in summary.shares.items()},
    )


def _summarize_task(
    config: CompareConfig, results: Results, facts: TaskFacts, cells: list[Cell]
) -> TaskSummary:
    task, labels = cells[0].task, labels_of(config)
    facts = _with_smallest_effect(config, _with_reported(config, results, task, facts))
    recipe = config.recipe_for(facts.recipe)
    more = [rounded_metric(facts.metrics[0], kind) for kind in recipe.roundings]
    facts = replace(facts, metrics=(*facts.metrics, *more))
    statuses = results.statuses()
    finished = [cell for cell in cells if statuses.get(cell.id) in FINISHED]
    curves = _curves(results, finished, facts.metrics, labels)
    lengths = _lengths(curves)
    if is_script(task):
        curves = _carried_on(curves, max(lengths, default=0))
    meta = results.meta()
    checks = [_checks(meta, cell) for cell in finished]
    shown, warnings = checked_curves(curves, checks, task, labels[0])
    idle = idle_methods(checks)
    return TaskSummary(
        task=task,
        description=facts.description,
        optimizer=(
            ""
            if is_script(task)
            else describe_optimizer(config.optimizer, recipe.layer_decay)
        ),
        epochs=max(lengths, default=0) if is_script(task) else recipe.epochs,
        metrics=facts.metrics,
        curves=shown,
        results={
            metric.name: _compare(
                shown[metric.name], metric, labels[0], idle, config.until_decided
            )
            for metric in facts.metrics
        },
        costs=_costs(results, finished),
        problems=[
            *warnings,
            *change_of(task, facts),
            *_problems(results, cells, statuses),
            *(_uneven(lengths) if is_script(task) else ()),
        ],
        missing=len(cells) - len(finished),
        evaluate_every=recipe.evaluate_every,
        origin=meta.get(f"{ORIGIN} of {task}", ""),
        trivial=_trivial(meta.get(f"{TRIVIAL} of {task}", "{}")),
        trained={**_texts(meta.get(f"{TRAINED} of {task}", "{}")), **_budget(config)},
        optimizers=_noted(meta, OPTIMIZER, task, labels),
        options=_noted(meta, OPTIONS, task, labels),
        samples=load_samples(results.path.parent, task, labels),
        training_losses=_training_losses(results, finished, labels),
        shares=_shares(meta, task, labels),
        sequential=config.until_decided,
        looks=load_looks(meta).get(task, ()),
        roundings=recipe.roundings,
    )


def _with_reported(
    config: CompareConfig, results: Results, task: str, facts: TaskFacts
) -> TaskFacts:
    """Add the metrics reported by a script; tasks declare theirs."""
    if not is_script(task):
        return facts
    reported = json.loads(results.meta().get(f"{REPORTED} of {task}", "[]"))
    return replace(facts, metrics=config.metrics_of_script(reported))


def _with_smallest_effect(config: CompareConfig, facts: TaskFacts) -> TaskFacts:
    """Apply the chosen smallest effect to the metric that decides."""
    if config.smallest_effect is None or not facts.metrics:
        return facts
    first, *others = facts.metrics
    chosen = replace(first, smallest_effect=config.smallest_effect)
    return replace(facts, metrics=(chosen, *others))


def _lengths(curves: Mapping[str, Curves]) -> set[int]:
    """Return the number of values per training."""
    return {
        len(curve)
        for methods in curves.values()
        for seeds in methods.values()
        for curve in seeds.values()
    }


def _carried_on(
    curves: Mapping[str, Mapping[str, Mapping[int, list[float]]]], length: int
) -> dict[str, dict[str, dict[int, list[float]]]]:
    """Pad the curves of scripts that stopped early with their last value."""
    return {
        metric: {
            method: {
                seed: [*values, *values[-1:] * (length - len(values))]
                for seed, values in seeds.items()
            }
            for method, seeds in methods.items()
        }
        for metric, methods in curves.items()
    }


def _uneven(lengths: set[int]) -> list[str]:
    """Report differing numbers of values, for example after early stopping."""
    if len(lengths) < 2:
        return []
    return [
        f"Trainings reported between {min(lengths)} and {max(lengths)} values; the "
        "last value of each counts."
    ]


def _texts(text: str) -> dict[str, str]:
    """Read the description of the training; ignore a damaged note."""
    with _DAMAGED:
        return {str(key): str(value) for key, value in json.loads(text).items()}
    return {}


def _budget(config: CompareConfig) -> dict[str, str]:
    """Say how an equal budget determined the epochs."""
    if not config.equal_budget:
        return {}
    text = "equal, in forward-backward passes"
    if config.passes > 1:
        text += f": {config.passes} per step, so 1/{config.passes} of the epochs"
    return {"Budget": text}


def _noted(
    meta: Mapping[str, str], what: str, task: str, labels: Sequence[str]
) -> dict[str, str]:
    """Read the notes of trainings about methods."""
    keys = {label: f"{what} of {label} in {task}" for label in labels}
    return {label: meta[key] for label, key in keys.items() if key in meta}


def _shares(
    meta: Mapping[str, str], task: str, labels: Sequence[str]
) -> dict[str, float]:
    """Read the value of f of the controls that use it."""
    found = {}
    for label in labels:
        with suppress(KeyError, ValueError):  # not a control, or damaged
            found[label] = float(meta[f"{SHARE} of {label} in {task}"])
    return found


def _trivial(text: str) -> dict[str, dict[str, float]]:
    """Read the values of trivial predictors; ignore damaged ones."""
    with _DAMAGED:
        return {
            str(name): {str(metric): float(value) for metric, value in values.items()}
            for name, values in json.loads(text).items()
        }
    return {}


def _checks(meta: Mapping[str, str], cell: Cell) -> CellChecks:
    """Read what a training noted for the checks; empty for earlier versions."""
    stacked = len(cell.seeds) > 1
    with _DAMAGED:
        noted = json.loads(meta.get(f"{CHECKS} of {cell.id}", "{}"))
        weights, batch, end = (
            dict(zip(cell.seeds, map(str, noted.get(name, [])), strict=False))
            for name in ("weights", "batch", "end")
        )
        idle = {str(method): str(why) for method, why in noted.get("idle", {}).items()}
        return CellChecks(cell.methods, stacked, weights, batch, end, idle)
    return CellChecks(cell.methods, stacked)


def _compare(
    curves: Curves,
    metric: Metric,
    baseline: str,
    idle: Mapping[str, str],
    sequential: bool,
) -> list[MethodResult]:
    if not curves.get(baseline):
        return []
    return compare(
        curves,
        higher_is_better=metric.higher_is_better,
        baseline=baseline,
        smallest_effect=smallest_effect_of(metric),
        idle=idle,
        sequential=sequential,
    )


def _curves(
    results: Results,
    cells: list[Cell],
    metrics: tuple[Metric, ...],
    labels: list[str],
) -> dict[str, dict[str, dict[int, list[float]]]]:
    """Collect values by metric, method and seed, in the order of the methods."""
    found: dict[str, dict[str, dict[int, list[float]]]] = {
        metric.name: {label: {} for label in labels} for metric in metrics
    }
    for cell in cells:
        for method, seed, metric, values in results.curves(cell):
            # Skip values that another program has written.
            if method in found.get(metric, {}):
                found[metric][method][seed] = values
    return {
        metric: {label: seeds for label, seeds in by_method.items() if seeds}
        for metric, by_method in found.items()
    }


def _training_losses(
    results: Results, cells: list[Cell], labels: Sequence[str]
) -> dict[str, dict[int, float]]:
    """Collect the training loss of the final weights, whether or not a metric."""
    found: dict[str, dict[int, float]] = {label: {} for label in labels}
    for cell in cells:
        for method, seed, metric, values in results.curves(cell):
            if metric == TRAINING_LOSS and method in found and values:
                found[method][seed] = values[-1]
    return {label: own for label, own in found.items() if own}


def _costs(results: Results, cells: list[Cell]) -> list[Cost]:
    groups: dict[tuple[str, ...], list[Cell]] = defaultdict(list)
    for cell in cells:
        groups[cell.methods].append(cell)
    meta = results.meta()
    is_measured = meta.get(MEMORY) == OF_STATE
    costs = []
    for methods, members in groups.items():
        rows = [results.cell(cell) for cell in members]
        seeds = sum(len(cell.seeds) for cell in members)
        train, evaluate = (
            sum(float(row[key]) for row in rows) / seeds
            for key in ("train_seconds", "evaluate_seconds")
        )
        memory = max(float(row["memory_mb"]) for row in rows) if is_measured else 0
        used = sum(_processor_seconds(meta, cell) for cell in members) / seeds
        costs.append(Cost(methods, seeds, train, evaluate, memory or math.nan, used))
    return costs


def _processor_seconds(meta: Mapping[str, str], cell: Cell) -> float:
    """Read the processor time of a training; NaN if it was not measured."""
    with _DAMAGED:
        return float(meta[f"{PROCESSOR} of {cell.id}"])
    return math.nan


def _problems(
    results: Results, cells: list[Cell], statuses: dict[str, str]
) -> list[str]:
    problems = []
    for cell in cells:
        status = statuses.get(cell.id)
        message = str(results.cell(cell)["message"]) if status is not None else ""
        if message or status not in ("done", None):
            problems.append(f"{cell}: {status}, {message.rstrip('.')}.")
    return problems
