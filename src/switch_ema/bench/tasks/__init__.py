"""The tasks by name: a new task is one file and one line here."""

from collections.abc import Sequence

from switch_ema.bench.spec import Spec, UsageError
from switch_ema.bench.task import SeedBatchTask, Task
from switch_ema.bench.tasks.classification.classification import Classification
from switch_ema.bench.tasks.classification.images import Images
from switch_ema.bench.tasks.language.lm import LanguageModel
from switch_ema.bench.tasks.loading import (
    check_options,
    explain,
    file_of,
    load_from_file,
    options_of,
    parse_task,
    takes_split,
)
from switch_ema.bench.tasks.regression.rotation import Rotation
from switch_ema.bench.tasks.ssl.a2mim import A2MIM
from switch_ema.bench.tasks.ssl.barlow_twins import BarlowTwins
from switch_ema.bench.tasks.ssl.byol import BYOL
from switch_ema.bench.tasks.ssl.contrastive import SimCLR
from switch_ema.bench.tasks.ssl.mae import MAE
from switch_ema.bench.tasks.ssl.moco_v2 import MoCoV2
from switch_ema.bench.tasks.ssl.moco_v3 import MoCoV3
from switch_ema.bench.tasks.ssl.simmim import SimMIM
from switch_ema.bench.tasks.toy.digits import Digits, NoisyDigits
from switch_ema.bench.tasks.toy.mnist1d import MNIST1D
from switch_ema.bench.tasks.toy.two_d import Circles, Moons


def _described(task_class: type[Task]) -> tuple[type[Task], str]:
    return task_class, (task_class.__doc__ or "").partition("\n")[0]


TASKS: dict[str, tuple[type[Task], str]] = {
    "noisy-digits": _described(NoisyDigits),
    "digits": _described(Digits),
    "circles": _described(Circles),
    "moons": _described(Moons),
    "mnist1d": _described(MNIST1D),
    "images": _described(Images),
    "classification": _described(Classification),
    "rotation": _described(Rotation),
    "lm": _described(LanguageModel),
    "simclr": _described(SimCLR),
    "moco-v2": _described(MoCoV2),
    "byol": _described(BYOL),
    "barlow-twins": _described(BarlowTwins),
    "moco-v3": _described(MoCoV3),
    "simmim": _described(SimMIM),
    "a2mim": _described(A2MIM),
    "mae": _described(MAE),
}
"""Class and one-line description."""


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
        task_class = TASKS[spec.name][0]
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
    "TASKS",
    "create_task",
    "load_task_class",
    "options_of",
    "parse_task",
]
