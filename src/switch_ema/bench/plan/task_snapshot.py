"""What a plan and a report need of a task, stored with the run when it begins.

So that a run can be shown when the file of its task has been edited or moved since.
"""

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from switch_ema.bench.errors import UsageError
from switch_ema.bench.fingerprints import fingerprint
from switch_ema.bench.loading import load_task_class
from switch_ema.bench.recipe import Metric, Recipe
from switch_ema.bench.spec import (
    SCRIPT,
    is_file,
    is_script,
    parse_task,
)
from switch_ema.bench.task import SeedBatchTask, SelfTeachingTask
from switch_ema.bench.text import read_json

FACTS = "tasks"
"""Key of the facts among the notes of a run."""


@dataclass(frozen=True, kw_only=True)
class TaskFacts:
    """What a task's class says about itself."""

    description: str
    metrics: tuple[Metric, ...]
    recipe: Recipe
    """The task's own, which the configuration may change."""
    is_stacked: bool
    """Whether its seeds are trained at once."""
    teaches_itself: bool
    seeds_at_once: int = 1
    """How many seeds are best trained at once, by ``Task.seeds_at_once``."""
    source: str
    """Fingerprint of the file it is in; empty for one of ours."""


def facts_of(task: str) -> TaskFacts:
    """Ask the task's class; a command of the user's says what it measures later."""
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
    """Spell the facts of a run's tasks as JSON."""
    facts = {task: dataclasses.asdict(facts_of(task)) for task in tasks}
    # A cell's name is made of its recipe's JSON in the same way, so that a recipe
    # that is read back gives the same names.
    return json.dumps(facts, default=str)


def load_facts(meta: Mapping[str, str], tasks: Iterable[str]) -> dict[str, TaskFacts]:
    """Read a run's facts back; without them our own tasks are asked as they are now.

    A file of the user's is never run for it: a run may come from somebody else.
    """
    stored = read_json(meta.get(FACTS, "{}"), "the run's note on its tasks")
    found = {}
    for task in tasks:
        if isinstance(stored, dict) and task in stored:
            try:
                found[task] = _read(dict(stored[task]))
            except (TypeError, ValueError, KeyError):
                raise UsageError(f"the run's note on {task} is damaged.") from None
        elif is_file(parse_task(task)):
            raise UsageError(
                f"the run has no note on its task {task}, and a file that a run names "
                "is not run to show it; compare it again."
            )
        else:
            found[task] = facts_of(task)
    return found


def change_of(task: str, facts: TaskFacts) -> list[str]:
    """Say if the file of a task is another one than when the run began."""
    now = fingerprint(task)
    if now == facts.source:
        return []
    change = "has changed since" if now else "is no longer where it was when"
    return [
        f"The file of {task} {change} the run was begun; the results are those of the "
        "file as it was then."
    ]


def _read(values: dict[str, Any]) -> TaskFacts:
    metrics = tuple(Metric(**metric) for metric in values.pop("metrics"))
    return TaskFacts(metrics=metrics, recipe=Recipe(**values.pop("recipe")), **values)
