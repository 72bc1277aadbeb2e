"""Tasks of the bench; :mod:`.registry` has their names."""

from collections.abc import Sequence

from switch_ema.bench.errors import UsageError
from switch_ema.bench.spec import Spec, file_of, parse_task
from switch_ema.bench.task import SeedBatchTask, Task
from switch_ema.bench.tasks.loading import (
    check_options,
    explain,
    load_from_file,
    options_of,
    takes_split,
)
from switch_ema.bench.tasks.registry import TASKS, import_task


def load_task_class(task: str | Spec) -> tuple[type[Task], Spec]:
    """Find a task and check its options, without making it.

    Args:
        task: a name with options, such as ``images:noise=0.3``, or a class in a file,
            such as ``my/task.py:Wine`` or ``my/task.py:Wine:size=50``.
    """
    spec = parse_task(task) if isinstance(task, str) else task
    file = file_of(spec)
    if file is not None:
        task_class = load_from_file(file, spec.name[len(file) + 1 :])
    elif spec.name in TASKS:
        task_class = import_task(spec.name)
    else:
        raise UsageError(
            f"unknown task {spec.name!r}; known are {', '.join(TASKS)}, "
            "or path/to/file.py:ClassName."
        )
    check_options(task_class, spec)
    return task_class, spec


def create_task(task: str | Spec, seeds: Sequence[int], *, split: str = "test") -> Task:
    """Make a task for one seed, or for several if it trains them stacked."""
    task_class, spec = load_task_class(task)
    options = dict(spec.options)
    if takes_split(task_class):
        options["split"] = split
    elif split != "test":
        raise UsageError(
            f"{spec.name} cannot be tuned: its constructor takes no keyword split."
        )
    stacked = issubclass(task_class, SeedBatchTask)
    if len(seeds) != 1 and not stacked:
        raise ValueError(f"{spec.name} takes one seed, got {len(seeds)}.")
    seed = tuple(seeds) if stacked else seeds[0]
    try:
        return task_class(seed, **options)  # type: ignore[arg-type]
    except UsageError:
        raise
    except Exception as error:
        file = file_of(spec)
        if file is not None:
            raise explain(error, file) from None
        if isinstance(error, ValueError):
            raise UsageError(f"{spec.name}: {error}") from None
        raise


__all__ = [
    "create_task",
    "load_task_class",
    "options_of",
    "parse_task",
]
