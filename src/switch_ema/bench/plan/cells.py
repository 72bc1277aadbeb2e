"""From a configuration to cells: trainings that can run apart and resume alone."""

import hashlib
import inspect
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from switch_ema.bench.errors import UsageError
from switch_ema.bench.loading import load_task_class, takes_split
from switch_ema.bench.method_names import CONTROL, DESCRIPTIONS
from switch_ema.bench.methods import (
    FILTERS,
    Method,
    control_for,
    effective,
    method_of,
    parse_method,
)
from switch_ema.bench.optimizers.catalog import check_optimizer, optimizer_info
from switch_ema.bench.optimizers.schedules import check_schedule
from switch_ema.bench.plan.config import LEARNING_RATE, CompareConfig
from switch_ema.bench.plan.task_snapshot import TaskFacts, facts_of
from switch_ema.bench.recipe import LATER, Recipe, stored_fields
from switch_ema.bench.spec import SHARE, Change, is_script, parse_spec
from switch_ema.bench.task import SelfTeachingTask, Task

SEEDS_AT_ONCE = 128
"""Seeds per cell of a task that is written for many seeds."""

HELD_OUT = "held-out"
"""The split of a comparison with a method such as ``ema+best`` that uses held-out data:
a fifth of the training data is held out from every method and chooses epochs, or when
to switch; the test values are reported."""

_FEWEST_STACKED = 4
"""With fewer seeds a stack costs about what it saves."""


@dataclass(frozen=True)
class Cell:
    """One training: a task, a group of methods that share it, and its seeds."""

    task: str
    optimizer: str | None
    recipe: Recipe
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    split: str = "test"
    """What is evaluated: "test", "validation", or HELD_OUT."""
    control_of: str = field(default="", metadata=LATER)
    """The Switch EMA whose surviving share is the factor of the learning rate."""

    @property
    def variants(self) -> tuple[tuple[Change, ...], ...]:
        """What methods change in the optimizer; several where rates are stacked."""
        changes = (tuple(effective(method_of(m).spec.changes)) for m in self.methods)
        return tuple(dict.fromkeys(changes))

    @property
    def networks(self) -> tuple[int, ...]:
        """The seed of each network that is trained: all seeds of one variant first."""
        return self.seeds * len(self.variants)

    @property
    def trained_split(self) -> str:
        """The split of the task that is trained."""
        return "validation" if self.split == HELD_OUT else self.split

    @property
    def evaluated_split(self) -> str:
        """The split of the task whose values are reported."""
        return "test" if self.split == HELD_OUT else self.split

    @cached_property  # of something frozen; a result asks for it once for each value
    def id(self) -> str:
        """A name that changes with anything the result depends on."""
        text = json.dumps(stored_fields(self), sort_keys=True, default=str)
        return hashlib.sha1(text.encode()).hexdigest()[:16]

    def __str__(self) -> str:
        """Tell the cell to a person."""
        seeds = str(self.seeds[0])
        if len(self.seeds) > 1:
            seeds += f" to {self.seeds[-1]}"
        return f"{self.task}, {' + '.join(self.methods)}, seed {seeds}"


def make_plan(
    config: CompareConfig, stored: Mapping[str, TaskFacts] | None = None
) -> list[Cell]:
    """List the cells of a comparison, in order.

    Args:
        config: the configuration of the comparison.
        stored: what a run has noted of its tasks, which then are not looked up again.
    """
    cells: list[Cell] = []
    for task in config.tasks:
        facts = _checked(config, task) if stored is None else stored[task]
        cells += _task_cells(config, task, facts)
    return in_order(cells)


def in_order(cells: Iterable[Cell]) -> list[Cell]:
    """Sort cells seed by seed, so that what is interrupted has complete pairs.

    Of each seed the baseline stays first; seeds that are trained at once count as the
    first of them.
    """
    return sorted(cells, key=lambda cell: cell.seeds[0])


def labels_of(config: CompareConfig) -> list[str]:
    """Name the methods of a comparison, also one that its optimizer brings along."""
    labels = list(config.methods)
    if config.optimizer is not None:
        averaging = optimizer_info(parse_spec(config.optimizer).name).averaging
        names = [method_of(label).spec.name for label in labels]
        if averaging and averaging not in names:
            labels.append(averaging)
    return labels


def _task_cells(config: CompareConfig, task: str, facts: TaskFacts) -> Iterator[Cell]:
    recipe = config.recipe_for(facts.recipe)
    methods = [method_of(label) for label in labels_of(config)]
    # An average that teaches changes the training of its own student.
    groups = _groups(methods, alone=facts.teaches_itself)
    seeds = range(config.first_seed, config.first_seed + config.seeds)
    together = _seeds_at_once(config, recipe, facts, methods)
    if config.stack == "all" and together > 1 and not facts.is_stacked:
        groups = _with_rates(groups)
    split = HELD_OUT if any(method.uses_held_out for method in methods) else "test"
    for group in groups:
        size = 1 if any(method.decides_by_seed for method in group) else together
        for start in range(0, len(seeds), size):
            yield Cell(
                task,
                config.optimizer,
                recipe,
                tuple(method.label for method in group),
                tuple(seeds[start : start + size]),
                split,
                control_of=control_for(group[0], methods),
            )


def _groups(methods: list[Method], *, alone: bool) -> list[list[Method]]:
    """Put methods together that can share one training, those that do first.

    They only read the weights, and train with the same settings of the optimizer.
    """
    shared: dict[tuple[str, str], list[Method]] = {}
    for method in methods:
        if method.shares_training and not alone:
            key = (method.changes, control_for(method, methods))
            shared.setdefault(key, []).append(method)
    others = [[m] for m in methods if alone or not m.shares_training]
    return [*shared.values(), *others]


def _with_rates(groups: list[list[Method]]) -> list[list[Method]]:
    """Put groups together that differ in their learning rates alone.

    The rate of a control with ``lr*f`` is known only when it is trained.
    """
    merged: dict[tuple[str, ...], list[Method]] = {}
    for group in groups:
        changes = group[0].spec.changes
        by_rate = all(c.option == LEARNING_RATE and c.value != SHARE for c in changes)
        by_rate = by_rate and not any(method.decides_by_seed for method in group)
        alike = tuple(str(replace(m.spec, changes=())) for m in group)
        key = alike if by_rate else tuple(m.label for m in group)
        merged.setdefault(key, []).extend(group)
    return list(merged.values())


def _seeds_at_once(
    config: CompareConfig, recipe: Recipe, facts: TaskFacts, methods: list[Method]
) -> int:
    """Choose how many seeds one training has: see ``CompareConfig.stack``."""
    if facts.is_stacked:
        return SEEDS_AT_ONCE
    if config.stack == "off" or config.seeds < _FEWEST_STACKED:
        return 1
    if config.optimizer is not None:
        info = optimizer_info(parse_spec(config.optimizer).name)
        if not info.elementwise or info.has_modes:
            return 1
    # Filters name the tensors of a network, and snapshots are of one training.
    options = [m.spec.with_defaults(recipe.methods.get(m.name, {})) for m in methods]
    has_filter = any(name in spec.options for spec in options for name in FILTERS)
    has_snapshots = any(method.spec.name == "posthoc-ema" for method in methods)
    alone = has_filter or has_snapshots or recipe.precision != "no"
    return 1 if alone else facts.seeds_at_once


def _checked(config: CompareConfig, task: str) -> TaskFacts:
    """Look a task up and refuse what cannot be trained before anything is."""
    facts = facts_of(task)
    recipe = config.recipe_for(facts.recipe)
    if is_script(task):
        _check_script_methods(config)
        return facts
    if config.metric or config.lower_is_better or config.higher_is_better:
        raise UsageError(
            "metric, lower_is_better and higher_is_better go with a script; tasks have "
            "metrics of their own."
        )
    _check(config, recipe, task, facts.is_stacked)
    _check_memory(config, task, load_task_class(task)[0])
    _check_options(recipe, task)
    for label in labels_of(config):
        method = parse_method(label, recipe.methods)
        if method.uses_held_out:
            _check_held_out(label, task)
        if method.decides_by_seed and facts.is_stacked:
            raise UsageError(
                f"{label} decides for each seed by itself, and {task} trains its seeds "
                "at once; choose another task."
            )
    return facts


def _check_script_methods(config: CompareConfig) -> None:
    """Refuse methods that need more of a training than a script lets them have."""
    for label in config.methods:
        method = parse_method(label, {})
        if method.spec.changes or method.uses_held_out or method.name == CONTROL:
            raise UsageError(
                f"{label} does not go with a script: its optimizer, its data and their "
                "order are the script's own."
            )


def _check_held_out(label: str, task: str) -> None:
    """Refuse a method where nothing can be held out, or its error is not known."""
    task_class, spec = load_task_class(task)
    if not takes_split(task_class):
        raise UsageError(
            f"{label} needs held-out data, and the constructor of {spec.name} takes no "
            "keyword split."
        )
    metric = task_class.metrics_for(spec.options)[0]
    if metric.unit != "%" or task_class.predictions is Task.predictions:
        raise UsageError(
            f"{label} needs the standard error of a share, so a task that classifies; "
            f"{spec.name} is judged by {metric.name}."
        )


def _check_options(recipe: Recipe, task: str) -> None:
    """Refuse options for no method, and those that another process cannot be sent."""
    for name, options in recipe.methods.items():
        if name not in DESCRIPTIONS:
            raise UsageError(
                f"{task}: the recipe has options for an unknown method {name!r}; "
                f"known are {', '.join(DESCRIPTIONS)}."
            )
        for key, value in options.items():
            if inspect.isroutine(value):
                raise UsageError(
                    f"{task}: the recipe's {key} of {name} must be a plain value, not "
                    "a function, which a run can neither store nor send to a process."
                )


def _check(config: CompareConfig, recipe: Recipe, task: str, stacked: bool) -> None:
    """Refuse a bad optimizer or schedule before anything is trained."""
    schedule_free = False
    if config.optimizer is not None:
        info = check_optimizer(parse_spec(config.optimizer))
        schedule_free = info.has_modes
        if stacked and not info.elementwise:
            raise UsageError(
                f"{task} trains its seeds stacked, which {info.name} would mix; "
                "choose another optimizer or task."
            )
    if stacked and recipe.clip is not None:
        raise UsageError(f"{task} trains its seeds stacked, which clip would mix.")
    check_schedule(recipe.schedule, schedule_free=schedule_free)
    if recipe.precision not in ("no", "bf16", "fp16"):
        raise UsageError(
            f"precision must be no, bf16 or fp16, got {recipe.precision!r}."
        )


def _check_memory(config: CompareConfig, task: str, task_class: type[Task]) -> None:
    """Refuse an optimizer that would fill a queue twice per step."""
    remembers = issubclass(task_class, SelfTeachingTask) and bool(task_class.memory)
    if remembers and config.optimizer is not None:
        info = optimizer_info(parse_spec(config.optimizer).name)
        if info.two_pass:
            raise UsageError(
                f"{task} keeps a queue, which {info.name} would fill twice per step; "
                "choose another optimizer or task."
            )
