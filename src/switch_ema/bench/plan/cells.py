"""Plans cells from a configuration: independent trainings, each resumable."""

import hashlib
import inspect
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from switch_ema.averaging.methods.swa import swa_budget
from switch_ema.bench.errors import UsageError
from switch_ema.bench.loading import check_packages, load_task_class, takes_split
from switch_ema.bench.method_names import CONTROL, DESCRIPTIONS
from switch_ema.bench.methods import (
    FILTERS,
    Method,
    changed_epochs,
    control_for,
    effective,
    method_of,
    parse_method,
)
from switch_ema.bench.optimizers.catalog import check_optimizer, optimizer_info
from switch_ema.bench.optimizers.schedules import check_schedule
from switch_ema.bench.plan.config import LEARNING_RATE, CompareConfig
from switch_ema.bench.plan.task_snapshot import TaskFacts, facts_of
from switch_ema.bench.recipe import LATER, PRECISIONS, Recipe, stored_fields
from switch_ema.bench.spec import SHARE, Change, is_script, parse_spec
from switch_ema.bench.task import SelfTeachingTask, Task
from switch_ema.bench.text import listed

SEEDS_AT_ONCE = 128
"""Seeds per cell of a task that is written to train many seeds."""

HELD_OUT = "held-out"
"""Split for comparisons with methods that use held-out data, such as ``ema+best``.

A fifth of the training data is held out from every method, to choose epochs or when to
switch; the reported values are those on the test data."""

_FEWEST_STACKED = 4
"""With fewer seeds, stacking costs about as much as it saves."""


@dataclass(frozen=True)
class Cell:
    """One training: a task, a group of methods that share it, and its seeds."""

    task: str
    optimizer: str | None
    recipe: Recipe
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    split: str = "test"
    """Data to evaluate on: "test", "validation", or HELD_OUT."""
    control_of: str = field(default="", metadata=LATER)
    """Switch EMA whose surviving share a control uses as f."""

    @property
    def variants(self) -> tuple[tuple[Change, ...], ...]:
        """Optimizer changes of the methods; several if learning rates are stacked."""
        changes = (tuple(effective(method_of(m).spec.changes)) for m in self.methods)
        return tuple(dict.fromkeys(changes))

    @property
    def networks(self) -> tuple[int, ...]:
        """Seed of each network in the stack, grouped by variant."""
        return self.seeds * len(self.variants)

    @property
    def trained_split(self) -> str:
        """Split of the task that is trained."""
        return "validation" if self.split == HELD_OUT else self.split

    @property
    def evaluated_split(self) -> str:
        """Split of the task whose values are reported."""
        return "test" if self.split == HELD_OUT else self.split

    @cached_property  # the class is frozen, and storing a result asks for every value
    def id(self) -> str:
        """Hash of everything that the result depends on."""
        text = json.dumps(stored_fields(self), sort_keys=True, default=str)
        return hashlib.sha1(text.encode()).hexdigest()[:16]

    def lasting(self, epochs: int) -> "Cell":
        """Return the same training, with the same id, for another number of epochs.

        For a control with ``epochs*f``, whose f is known only once training starts. The
        warm-up keeps its share of the training.
        """
        found = replace(self, recipe=_with_epochs(self.recipe, epochs))
        found.__dict__["id"] = self.id
        return found

    def __str__(self) -> str:
        """Describe the cell for messages."""
        seeds = str(self.seeds[0])
        if len(self.seeds) > 1:
            seeds += f" to {self.seeds[-1]}"
        return f"{self.task}, {' + '.join(self.methods)}, seed {seeds}"


def make_plan(
    config: CompareConfig, stored: Mapping[str, TaskFacts] | None = None
) -> list[Cell]:
    """List the cells of a comparison, in order.

    Args:
        config: configuration of the comparison.
        stored: facts that a run stored about its tasks; they are not loaded then.
    """
    cells: list[Cell] = []
    for task in config.tasks:
        facts = _checked(config, task) if stored is None else stored[task]
        cells += _task_cells(config, task, facts)
    return in_order(cells)


def in_order(cells: Iterable[Cell]) -> list[Cell]:
    """Sort cells by seed, so that an interrupted run has complete pairs.

    The sort is stable, so each seed's baseline stays first. Stacked seeds sort by the
    first of them.
    """
    return sorted(cells, key=lambda cell: cell.seeds[0])


def labels_of(config: CompareConfig) -> list[str]:
    """List the methods of a comparison, including one implied by its optimizer."""
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
    # A teacher's average affects the training, so methods cannot share one.
    groups = _groups(methods, alone=facts.teaches_itself)
    split = HELD_OUT if any(method.uses_held_out for method in methods) else "test"
    # Seeds are stacked round by round, so that an extension finds the stored cells.
    for seeds in config.seeds_by_round:
        together = _seeds_at_once(config, recipe, facts, methods, len(seeds))
        merges = config.stack == "all" and together > 1 and not facts.is_stacked
        for group in _with_rates(groups) if merges else groups:
            size = 1 if any(method.decides_by_seed for method in group) else together
            for start in range(0, len(seeds), size):
                yield Cell(
                    task,
                    config.optimizer,
                    _recipe_of(group[0], recipe, is_equal=config.equal_budget),
                    tuple(method.label for method in group),
                    tuple(seeds[start : start + size]),
                    split,
                    control_of=control_for(group[0], methods),
                )


def _with_epochs(recipe: Recipe, epochs: int) -> Recipe:
    """Change the length of a training; the warm-up keeps its share of it."""
    warmup = recipe.warmup_epochs * epochs / recipe.epochs
    return replace(recipe, epochs=epochs, warmup_epochs=warmup)


def _recipe_of(method: Method, recipe: Recipe, *, is_equal: bool) -> Recipe:
    """Apply a method's number of epochs and its budget to a task's recipe."""
    epochs = changed_epochs(recipe.epochs, method.spec.changes)
    if epochs != recipe.epochs:
        recipe = _with_epochs(recipe, epochs)
    return _with_budget(recipe, method, is_equal=is_equal)


def _with_budget(recipe: Recipe, method: Method, *, is_equal: bool) -> Recipe:
    """Lengthen the training of a method with a budget of epochs.

    With an equal budget, shorten its schedule instead, so that the whole is no longer
    than the other trainings.
    """
    if method.budget is None:
        return recipe
    scheduled, most = recipe.epochs, recipe.epochs
    while is_equal and scheduled > 1 and swa_budget(scheduled, method.budget)[0] > most:
        scheduled -= 1
    if scheduled < most:
        warmup = recipe.warmup_epochs * scheduled / most
        recipe = replace(recipe, warmup_epochs=warmup)
    total, scheduled = swa_budget(scheduled, method.budget)
    return replace(recipe, epochs=total, extra_epochs=total - scheduled)


def _groups(methods: list[Method], *, alone: bool) -> list[list[Method]]:
    """Group methods that can share one training; shared groups come first.

    Methods can share one if they only read the weights and have the same optimizer
    settings.
    """
    shared: dict[tuple[str, str], list[Method]] = {}
    for method in methods:
        if method.shares_training and not alone:
            key = (method.changes, control_for(method, methods))
            shared.setdefault(key, []).append(method)
    others = [[m] for m in methods if alone or not m.shares_training]
    return [*shared.values(), *others]


def _with_rates(groups: list[list[Method]]) -> list[list[Method]]:
    """Merge groups that differ only in their learning rates.

    Not controls with f, which is known only once training starts.
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
    config: CompareConfig,
    recipe: Recipe,
    facts: TaskFacts,
    methods: list[Method],
    seeds: int,
) -> int:
    """Choose how many seeds to stack per training: see ``CompareConfig.stack``."""
    if facts.is_stacked:
        return SEEDS_AT_ONCE
    if config.stack == "off" or seeds < _FEWEST_STACKED:
        return 1
    if config.optimizer is not None:
        info = optimizer_info(parse_spec(config.optimizer).name)
        if not info.elementwise or info.has_modes:
            return 1
    # Filters name tensors of a single network, and snapshots hold a single training.
    options = [m.spec.with_defaults(recipe.methods.get(m.name, {})) for m in methods]
    has_filter = any(name in spec.options for spec in options for name in FILTERS)
    has_snapshots = any(method.spec.name == "posthoc-ema" for method in methods)
    alone = has_filter or has_snapshots or recipe.precision != "no" or recipe.compile
    return 1 if alone else facts.seeds_at_once


def _checked(config: CompareConfig, task: str) -> TaskFacts:
    """Load a task and refuse invalid settings before anything is trained."""
    facts = facts_of(task)
    recipe = config.recipe_for(facts.recipe)
    if is_script(task):
        _check_script_methods(config)
        return facts
    if config.metric or config.lower_is_better or config.higher_is_better:
        raise UsageError(
            "metric, lower_is_better and higher_is_better are for scripts; tasks "
            "define their own metrics."
        )
    check_packages(task)
    _check(config, recipe, task, facts.is_stacked)
    _check_memory(config, task, load_task_class(task)[0])
    _check_options(recipe, task)
    for label in labels_of(config):
        method = parse_method(label, recipe.methods)
        if method.uses_held_out:
            _check_held_out(label, task)
        if method.decides_by_seed and facts.is_stacked:
            raise UsageError(
                f"{label} decides for each seed separately, but {task} trains its "
                "seeds stacked; choose another task."
            )
    return facts


def _check_script_methods(config: CompareConfig) -> None:
    """Refuse methods that need control over the training, which scripts do not give."""
    for label in config.methods:
        method = parse_method(label, {})
        changes = method.spec.changes or method.budget is not None
        if changes or method.uses_held_out or method.name == CONTROL:
            raise UsageError(
                f"{label} does not work with a script, which controls its own "
                "optimizer, epochs, data and data order."
            )


def _check_held_out(label: str, task: str) -> None:
    """Refuse a method if no data can be held out, or the task has no error rate."""
    task_class, spec = load_task_class(task)
    if not takes_split(task_class):
        raise UsageError(
            f"{label} needs held-out data, but the constructor of {spec.name} has no "
            "keyword split."
        )
    metric = task_class.metrics_for(spec.options)[0]
    if metric.unit != "%" or task_class.predictions is Task.predictions:
        raise UsageError(
            f"{label} needs the standard error of an error rate, so a classification "
            f"task; {spec.name} is judged by {metric.name}."
        )


def _check_options(recipe: Recipe, task: str) -> None:
    """Refuse options of unknown methods, and values that cannot be serialized."""
    for name, options in recipe.methods.items():
        if name not in DESCRIPTIONS:
            raise UsageError(
                f"{task}: the recipe has options for an unknown method {name!r}; "
                f"known are {', '.join(DESCRIPTIONS)}."
            )
        for key, value in options.items():
            if inspect.isroutine(value):
                raise UsageError(
                    f"{task}: the recipe's {key} of {name} must be a plain value; a "
                    "function cannot be stored or sent to another process."
                )


def _check(config: CompareConfig, recipe: Recipe, task: str, stacked: bool) -> None:
    """Refuse an invalid optimizer, schedule or precision."""
    schedule_free = False
    if config.optimizer is not None:
        info = check_optimizer(parse_spec(config.optimizer))
        schedule_free = info.has_modes
        if stacked and not info.elementwise:
            raise UsageError(
                f"{task} trains its seeds stacked, and {info.name} would mix them; "
                "choose another optimizer or task."
            )
    if stacked and recipe.clip is not None:
        raise UsageError(
            f"{task} trains its seeds stacked, and clip would mix them; leave it out."
        )
    if stacked and recipe.deploy:
        raise UsageError(
            f"{task} trains its seeds stacked in layouts of its own, which deploy "
            "cannot round by channel; leave it out or choose another task."
        )
    check_schedule(recipe.schedule, schedule_free=schedule_free)
    if recipe.precision not in PRECISIONS:
        raise UsageError(
            f"{task}: the recipe's precision must be {listed(PRECISIONS, 'or')}, got "
            f"{recipe.precision!r}."
        )


def _check_memory(config: CompareConfig, task: str, task_class: type[Task]) -> None:
    """Refuse an optimizer that would update a task's queue twice per step."""
    remembers = issubclass(task_class, SelfTeachingTask) and bool(task_class.memory)
    if remembers and config.optimizer is not None:
        info = optimizer_info(parse_spec(config.optimizer).name)
        if info.two_pass:
            raise UsageError(
                f"{task} keeps a queue, which {info.name} would fill twice per step; "
                "choose another optimizer or task."
            )
