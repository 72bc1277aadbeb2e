"""Facts about a task that plans and reports need, stored when a run starts.

With them a run can be shown even if the file of its task was edited or moved since.
"""

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from switch_ema.bench.errors import UsageError
from switch_ema.bench.fingerprints import fingerprint
from switch_ema.bench.loading import load_task_class
from switch_ema.bench.recipe import Metric, Recipe, stored_fields
from switch_ema.bench.spec import (
    SCRIPT,
    is_file,
    is_script,
    parse_task,
)
from switch_ema.bench.task import SeedBatchTask, SelfTeachingTask
from switch_ema.bench.text import read_json

FACTS = "tasks"
"""Metadata key of the facts about a run's tasks."""


@dataclass(frozen=True, kw_only=True)
class TaskFacts:
    """Properties of a task's class."""

    description: str
    metrics: tuple[Metric, ...]
    recipe: Recipe
    """The task's own recipe, which the configuration may override."""
    is_stacked: bool
    """Whether it is written to train many seeds stacked."""
    teaches_itself: bool
    seeds_at_once: int = 1
    """Best number of seeds to stack, from ``Task.seeds_at_once``."""
    source: str
    """Fingerprint of its file; empty for a built-in task."""


def facts_of(task: str) -> TaskFacts:
    """Collect the facts from the task's class; scripts report their metrics later."""
    if is_script(task):
        return TaskFacts(
            description=f"The command {task.removeprefix(SCRIPT)}",
            metrics=(),
            recipe=Recipe(),
            is_stacked=False,
            teaches_itself=False,
            source=fingerprint(task),
        )
    task_class, spec = load_task_class(task)
    return TaskFacts(
        description=(task_class.__doc__ or "").partition("\n")[0],
        metrics=task_class.metrics_for(spec.options),
        recipe=task_class.recipe_for(spec.options),
        is_stacked=issubclass(task_class, SeedBatchTask),
        teaches_itself=issubclass(task_class, SelfTeachingTask),
        seeds_at_once=task_class.seeds_at_once(spec.options),
        source=fingerprint(task),
    )


def dump_facts(tasks: Iterable[str]) -> str:
    """Serialize the facts of a run's tasks as JSON."""
    facts = {task: dataclasses.asdict(facts_of(task)) for task in tasks}
    # As in the hash of a cell's id, so that a recipe read back gives the same ids.
    return json.dumps(facts, default=str)


def load_facts(meta: Mapping[str, str], tasks: Iterable[str]) -> dict[str, TaskFacts]:
    """Load a run's facts; if missing, collect those of built-in tasks now.

    Never runs a user's file for this: the run may come from somebody else.
    """
    stored = read_json(meta.get(FACTS, "{}"), "the run's record of its tasks")
    found = {}
    for task in tasks:
        if isinstance(stored, dict) and task in stored:
            try:
                found[task] = _read(dict(stored[task]))
            except (TypeError, ValueError, KeyError):
                raise UsageError(f"the run's record of {task} is damaged.") from None
        elif is_file(parse_task(task)):
            raise UsageError(
                f"the run has no record of its task {task}, and showing a run does not "
                "execute the files it names; compare it again."
            )
        else:
            found[task] = facts_of(task)
    return found


def retrained(meta: Mapping[str, str], tasks: Iterable[str]) -> list[str]:
    """List the tasks of a run whose recipe differs from the one it stored."""
    known = [task for task in tasks if FACTS in meta and not is_script(task)]
    stored = load_facts(meta, known)
    return [
        task
        for task in known
        if _spelled(stored[task].recipe) != _spelled(facts_of(task).recipe)
    ]


def change_of(task: str, facts: TaskFacts) -> list[str]:
    """Describe how the file of a task differs from when the run started, if it does."""
    now = fingerprint(task)
    if now == facts.source:
        return []
    change = "has changed since" if now else "is no longer where it was when"
    return [
        f"The file of {task} {change} the run was started; the results are those of "
        "the original file."
    ]


def _spelled(recipe: Recipe) -> str:
    """Serialize a recipe; equal recipes give equal texts, read back or not."""
    return json.dumps(stored_fields(recipe), sort_keys=True, default=str)


def _read(values: dict[str, Any]) -> TaskFacts:
    metrics = tuple(Metric(**metric) for metric in values.pop("metrics"))
    return TaskFacts(metrics=metrics, recipe=Recipe(**values.pop("recipe")), **values)
