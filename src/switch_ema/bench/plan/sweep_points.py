"""Points: the settings of a sweep or of tuning, each a separate comparison.

All points of a task are planned together, to share trainings where possible.
"""

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from switch_ema.bench.errors import UsageError
from switch_ema.bench.loading import load_task_class
from switch_ema.bench.loading import options_of as options_of_task
from switch_ema.bench.methods import method_of, options_of
from switch_ema.bench.optimizers.catalog import check_optimizer, options_in_common
from switch_ema.bench.plan.cells import Cell, in_order, labels_of, make_plan
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.plan.task_snapshot import TaskFacts
from switch_ema.bench.spec import (
    EPOCHS,
    Change,
    Spec,
    parse_method_spec,
    parse_spec,
    parse_variation,
)
from switch_ema.bench.text import read_json

POINTS = "points"
"""Metadata key of a run's points."""
UNTUNED, TUNED = "untuned", "tuned"
"""Titles of the points of a tuned run."""


@dataclass(frozen=True)
class SweepPoint:
    """One setting of one task, with the names of task and methods in it."""

    title: str
    """Such as "lr = 0.05"."""
    typed: str
    """The task as it was typed."""
    task: str
    methods: tuple[str, ...]
    """In the order of the configuration."""


def sweep_points(config: CompareConfig) -> list[SweepPoint]:
    """Return the points of a comparison's sweep; empty without a sweep.

    The option is searched among those of the tasks, the methods and the optimizer, in
    this order. A method that sets the option itself keeps its value.
    """
    if config.sweep is None:
        return []
    option, values = parse_variation(config.sweep)
    tasks, methods = config.tasks, tuple(labels_of(config))
    if any(option in options_of_task(load_task_class(task)[0]) for task in tasks):
        return [
            SweepPoint(
                f"{option} = {value}", task, _task_with(task, option, value), methods
            )
            for value in values
            for task in tasks
        ]
    check_varied(config, option)
    settings = {
        f"{option} = {value}": with_value(methods, option, value) for value in values
    }
    for title, names in settings.items():
        alike = [name for name in names if names.count(name) > 1]
        if alike:
            raise UsageError(
                f"two methods would be {alike[0]} at {title}; leave one of them out."
            )
    if len(set(settings.values())) == 1:
        raise UsageError(
            f"every method sets {option} itself, so there is nothing to sweep; leave "
            "it out of the methods."
        )
    return [
        SweepPoint(title, task, task, names)
        for title, names in settings.items()
        for task in tasks
    ]


def check_varied(config: CompareConfig, option: str) -> None:
    """Refuse an option that neither the methods nor the optimizer have, nor epochs."""
    if any(option in options_of(method_of(m).spec.name) for m in config.methods):
        return
    if option == EPOCHS:
        return
    if config.optimizer is not None:
        base = parse_spec(config.optimizer)
        check_optimizer(replace(base, options={**base.options, option: 0}))
    elif option not in (known := options_in_common()):
        raise UsageError(
            f"neither the tasks, the methods nor the optimizer have an option "
            f"{option!r}; options of the optimizer are {', '.join(known)}."
        )


def with_value(methods: Sequence[str], option: str, value: Any) -> tuple[str, ...]:
    """Set an option of the methods or, if none has it, of their optimizer.

    A method that sets the option itself keeps its value.

    >>> with_value(["plain", "ema"], "decay", 0.9)
    ('plain', 'ema:decay=0.9')
    >>> with_value(["ema@lr*0.5", "ema@lr=1"], "lr", 0.1)
    ('ema@lr=0.1,lr*0.5', 'ema@lr=1')
    """
    specs = {method: parse_method_spec(method) for method in methods}
    if any(option in options_of(spec.name) for spec in specs.values()):
        return tuple(_with_own(m, spec, option, value) for m, spec in specs.items())
    return tuple(_with_change(m, spec, option, value) for m, spec in specs.items())


def _with_own(method: str, spec: Spec, option: str, value: Any) -> str:
    if option in spec.options or option not in options_of(spec.name):
        return method
    return str(replace(spec, options={option: value, **spec.options}))


def _with_change(method: str, spec: Spec, option: str, value: Any) -> str:
    if any(c.option == option and not c.is_factor for c in spec.changes):
        return method
    return str(replace(spec, changes=(Change(option, value), *spec.changes)))


def with_factor(method: str, option: str, factor: float) -> str:
    """Scale a method's learning rate or epochs, unless the method sets them itself.

    >>> with_factor("ema:decay=0.9", "lr", 0.5), with_factor("ema", "lr", 1)
    ('ema@lr*0.5:decay=0.9', 'ema')
    """
    spec = parse_method_spec(method)
    is_fixed = any(c.option == option and not c.is_factor for c in spec.changes)
    if factor == 1 or is_fixed:
        return method
    change = Change(option, factor, is_factor=True)
    return str(replace(spec, changes=(change, *spec.changes)))


def trained(config: CompareConfig, points: Sequence[SweepPoint]) -> CompareConfig:
    """Return a configuration with all points' tasks and methods, if there are any."""
    if not points:
        return config
    return replace(
        config,
        tasks=tuple(dict.fromkeys(point.task for point in points)),
        methods=tuple(dict.fromkeys(m for point in points for m in point.methods)),
        sweep=None,
        tune=0,
    )


def plan_points(
    config: CompareConfig,
    points: Sequence[SweepPoint],
    stored: Mapping[str, TaskFacts] | None = None,
) -> list[Cell]:
    """List the cells of all points; without points, those of the comparison.

    Each task gets the methods of its own points, as tuning chooses them per task.

    Args:
        config: the comparison, or the one returned by :func:`trained`.
        points: points of the sweep or of tuning.
        stored: facts that a run stored about its tasks.
    """
    if not points:
        return make_plan(config, stored)
    by_task: dict[str, list[SweepPoint]] = {}
    for point in points:
        by_task.setdefault(point.task, []).append(point)
    plans = (make_plan(trained(config, own), stored) for own in by_task.values())
    return in_order(cell for cells in plans for cell in cells)


def dump_points(points: Iterable[SweepPoint]) -> str:
    """Serialize points as JSON."""
    return json.dumps([dataclasses.asdict(point) for point in points])


def load_points(meta: Mapping[str, str]) -> list[SweepPoint]:
    """Load the points of a run; most runs have none."""
    try:
        return [
            SweepPoint(p["title"], p["typed"], p["task"], tuple(p["methods"]))
            for p in read_json(meta.get(POINTS, "[]"), "the run's list of points")
        ]
    except (TypeError, KeyError):
        raise UsageError("the run's list of points is damaged.") from None


def _task_with(task: str, option: str, value: Any) -> str:
    task_class, spec = load_task_class(task)
    if option not in options_of_task(task_class):
        raise UsageError(
            f"{spec.name} has no option {option!r}, unlike the other tasks."
        )
    if option in spec.options:
        raise UsageError(f"{task} sets {option} itself; leave it out to sweep it.")
    return str(Spec(spec.name, {option: value, **spec.options}))
