"""Options of a run that do not change its results."""

import importlib.util
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from switch_ema._extras import missing_extra
from switch_ema.bench.errors import UsageError
from switch_ema.bench.text import listed, read_duration, unknown

_EXECUTORS = ("local", "ray", "slurm", "inline")
_MOST_WORKERS = 4096
_KEPT = ("none", "last", "all")


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How to run a comparison; the results do not depend on it."""

    out: Path = Path("runs")
    """Folder in which run folders are created."""
    name: str | None = None
    """Name of the run folder; by default derived from the tasks and settings."""
    jobs: int = 0
    """Cells to train at once; 0: one per GPU, or else per core; one for a script."""
    threads: int | None = None
    """Threads per training; None: the run's setting, which is 1 for a new run."""
    readers: int | None = None
    """Processes per training that read and augment its data, for tasks with the option
    workers; None: the task's own choice. Results do not depend on it."""
    executor: str = "local"
    """Where to train cells: local (worker processes), ray or slurm (a cluster), or
    inline (this process)."""
    workers_per_training: int = field(default_factory=lambda: launched()[1])
    """Data-parallel workers per training, each with a GPU if there are any; results
    equal those of one worker up to rounding."""
    timeout: float | None = None
    """Seconds without a finished epoch after which a training fails."""
    address: str | None = None
    """Address of the Ray cluster; None: the one on this machine, or a new one."""
    slurm: tuple[str, ...] = ()
    """Job options for --executor slurm, with submitit's names, such as
    slurm_partition=gpu timeout_min=600."""
    device: str | None = None
    """cpu or cuda; None lets Accelerate choose."""
    track: tuple[str, ...] = ()
    """Accelerate's trackers, such as tensorboard."""
    checkpoint_every: str = "15min"
    """Time between checkpoints within an epoch, such as 15min, or epoch: only at its
    end. SIGUSR1 saves one at once; SIGTERM saves one and stops."""
    keep: str | None = None
    """Trained weights to keep as safetensors files, live and averaged: none, last (of
    the last epoch), or all (of every evaluated epoch). Default: last for reproduce
    --scale paper, otherwise none."""
    keep_checkpoints: str = "first"
    """Seeds whose last checkpoint is kept, for switch-ema landscape: first, all or
    none."""
    skip_broken: int = 0
    """Broken image files that each training may leave out; they are listed with its
    results. One more stops it."""
    keep_going: bool = False
    """Go on after a training of a script failed; those of tasks always go on."""
    dry_run: bool = False
    """Print the plan and stop."""

    def __post_init__(self) -> None:
        if self.keep not in (None, *_KEPT):
            raise UsageError(f"keep must be {listed(_KEPT, 'or')}, got {self.keep!r}.")
        if self.keep_checkpoints not in ("first", "all", "none"):
            raise UsageError(
                "keep_checkpoints must be first, all or none, "
                f"got {self.keep_checkpoints!r}."
            )
        if self.jobs < 0:
            raise UsageError(f"jobs must be at least 0, got {self.jobs}.")
        if self.skip_broken < 0:
            raise UsageError(f"skip_broken must be at least 0, got {self.skip_broken}.")
        if self.threads is not None and not 1 <= self.threads <= 1024:
            raise UsageError(f"threads must be in [1, 1024], got {self.threads}.")
        if self.readers is not None and not 0 <= self.readers <= _MOST_WORKERS:
            raise UsageError(
                f"readers must be in [0, {_MOST_WORKERS}], got {self.readers}."
            )
        if not 1 <= self.workers_per_training <= _MOST_WORKERS:
            raise UsageError(
                f"workers_per_training must be in [1, {_MOST_WORKERS}], "
                f"got {self.workers_per_training}."
            )
        _, launched_size = launched()
        if launched_size > 1 and (self.executor, self.workers_per_training) != (
            "local",
            launched_size,
        ):
            raise UsageError(
                f"torchrun started {launched_size} processes, which are the workers of "
                "each training; leave out --executor and --workers-per-training."
            )
        if self.timeout is not None and not self.timeout > 0:
            raise UsageError(f"timeout must be above 0, got {self.timeout}.")
        if self.timeout is not None and self.executor != "local":
            raise UsageError(f"timeout needs --executor local, got {self.executor}.")
        check_device(self.device)
        self.checkpoint_seconds  # noqa: B018 - refuses an invalid time
        if self.name is not None and not _is_folder_name(self.name):
            raise UsageError(f"name must be a folder name, not {self.name!r}.")
        _check_executor(self.executor, self.address)
        if self.executor == "ray" and self.workers_per_training > 1:
            _need("pandas", "Ray Train", "ray", "--workers-per-training")
        if self.slurm and self.executor != "slurm":
            raise UsageError(f"slurm needs --executor slurm, got {self.slurm}.")
        job_options(self.slurm)

    @property
    def checkpoint_seconds(self) -> float:
        """Seconds between checkpoints within an epoch; infinite for none."""
        if self.checkpoint_every == "epoch":
            return math.inf
        return read_duration(self.checkpoint_every, "checkpoint_every")


def launched() -> tuple[int, int]:
    """Return rank and world size as torchrun set them; (0, 1) without torchrun."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return 0, 1
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def _check_executor(name: str, address: str | None) -> None:
    """Refuse an unknown or missing executor, and an address it does not take."""
    if name not in _EXECUTORS:
        raise UsageError(f"executor must be {listed(_EXECUTORS, 'or')}, got {name!r}.")
    if name != "ray" and address is not None:
        raise UsageError(f"address needs --executor ray, got {address!r}.")
    if name == "ray":
        _need("ray", "Ray", "ray", "--executor ray")
    if name == "slurm":
        _need("submitit", "submitit", "slurm", "--executor slurm")


def _need(package: str, title: str, extra: str, flag: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise UsageError(missing_extra(title, f"bench,{extra}", flag))


def job_options(texts: Sequence[str]) -> dict[str, str | int]:
    """Parse job options; integers become numbers.

    >>> job_options(["slurm_partition=gpu", "timeout_min=600"])
    {'slurm_partition': 'gpu', 'timeout_min': 600}
    """
    found: dict[str, str | int] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name.isidentifier() and equals and value):
            raise UsageError(
                "slurm takes options as name=value, such as slurm_partition=gpu, "
                f"got {text!r}."
            )
        found[name] = int(value) if value.isdecimal() else value
    return found


def check_trackers(names: Sequence[str]) -> None:
    """Refuse unknown or missing trackers, before anything is trained."""
    if not names:
        return
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers

    there = {str(kind.value) for kind in get_available_trackers()}
    for name in names:
        if name not in LOGGER_TYPE_TO_CLASS:
            raise unknown("tracker", name, LOGGER_TYPE_TO_CLASS)
        if name not in there:
            raise UsageError(f"--track {name}: its library is not installed.")


def check_device(device: str | None) -> None:
    """Refuse an unknown or missing device."""
    if device not in (None, "cpu", "cuda"):
        raise UsageError(
            f"device must be cpu, cuda or None (what Accelerate finds), got {device!r}."
        )
    if device == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise UsageError("device is cuda, but torch finds no GPU.")


def _is_folder_name(name: str) -> bool:
    """Whether a text is a plain name; a path would lead outside of the folder.

    >>> [_is_folder_name(name) for name in ("mine", "", ".", "..", "a/b")]
    [True, False, False, False, False]
    """
    return name != ".." and Path(name).name == name != ""
