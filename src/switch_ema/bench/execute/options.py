"""How a comparison is run, as far as the numbers do not depend on it."""

import importlib.util
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from switch_ema._extras import missing_extra
from switch_ema.bench.errors import UsageError
from switch_ema.bench.text import listed, unknown

EXECUTORS = ("local", "ray", "slurm", "inline")
MOST_WORKERS = 4096


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How a comparison is run; the numbers do not depend on it."""

    out: Path = Path("runs")
    """Folder that run folders are made in."""
    name: str | None = None
    """Name of the run folder; by default made from the tasks and the settings."""
    jobs: int = 0
    """Cells trained at a time; 0: one per core, or per GPU; of a script, one."""
    threads: int | None = None
    """Threads of each training; None: the run's own, which is 1 for a new run."""
    executor: str = "local"
    """Where cells are trained: local (processes), ray or slurm (a cluster), or inline
    (in this process)."""
    workers_per_training: int = field(default_factory=lambda: launched()[1])
    """Workers, with a GPU each if there are any, that divide each batch of a training
    among them; the values are those of one worker, up to rounding."""
    timeout: float | None = None
    """Seconds without a finished epoch after which a training is given up."""
    address: str | None = None
    """Address of the Ray cluster; None: the one on this machine, or a new one."""
    slurm: tuple[str, ...] = ()
    """Options of the jobs of --executor slurm, as submitit names them, such as
    slurm_partition=gpu timeout_min=600."""
    device: str | None = None
    """cpu, cuda, or None for what Accelerate finds."""
    track: tuple[str, ...] = ()
    """Accelerate's trackers, such as tensorboard."""
    keep_checkpoints: str = "first"
    """Whose weights are kept, for switch-ema landscape: first (seed), all or none."""
    dry_run: bool = False
    """Print the plan and stop."""

    def __post_init__(self) -> None:
        if self.keep_checkpoints not in ("first", "all", "none"):
            raise UsageError(
                "keep_checkpoints must be first, all or none, "
                f"got {self.keep_checkpoints!r}."
            )
        if self.jobs < 0:
            raise UsageError(f"jobs must be at least 0, got {self.jobs}.")
        if self.threads is not None and not 1 <= self.threads <= 1024:
            raise UsageError(f"threads must be in [1, 1024], got {self.threads}.")
        if not 1 <= self.workers_per_training <= MOST_WORKERS:
            raise UsageError(
                f"workers_per_training must be in [1, {MOST_WORKERS}], "
                f"got {self.workers_per_training}."
            )
        _, launched_size = launched()
        if launched_size > 1 and (self.executor, self.workers_per_training) != (
            "local",
            launched_size,
        ):
            raise UsageError(
                f"torchrun has started {launched_size} processes, which are the "
                "workers of each training; leave out --executor and "
                "--workers-per-training."
            )
        if self.timeout is not None and not self.timeout > 0:
            raise UsageError(f"timeout must be above 0, got {self.timeout}.")
        if self.timeout is not None and self.executor != "local":
            raise UsageError(f"timeout is for --executor local, got {self.executor}.")
        check_device(self.device)
        if self.name is not None and not _is_folder_name(self.name):
            raise UsageError(f"name must be that of one folder, got {self.name!r}.")
        check_executor(self.executor, self.address)
        if self.executor == "ray" and self.workers_per_training > 1:
            _need("pandas", "Ray Train", "ray", "--workers-per-training")
        if self.slurm and self.executor != "slurm":
            raise UsageError(f"slurm is for --executor slurm alone, got {self.slurm}.")
        job_options(self.slurm)


def launched() -> tuple[int, int]:
    """Return the rank of this process and their number, as torchrun has started them.

    (0, 1) where torchrun has not.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return 0, 1
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def check_executor(name: str, address: str | None) -> None:
    """Refuse an executor that is unknown, not installed or wrongly addressed."""
    if name not in EXECUTORS:
        raise UsageError(f"executor must be {listed(EXECUTORS, 'or')}, got {name!r}.")
    if name != "ray" and address is not None:
        raise UsageError(f"address is for --executor ray alone, got {address!r}.")
    if name == "ray":
        _need("ray", "Ray", "ray", "--executor ray")
    if name == "slurm":
        _need("submitit", "submitit", "slurm", "--executor slurm")


def _need(package: str, title: str, extra: str, flag: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise UsageError(missing_extra(title, f"bench,{extra}", flag))


def job_options(texts: Sequence[str]) -> dict[str, str | int]:
    """Read options of jobs as they are typed; whole numbers are numbers.

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
    """Refuse a tracker that is unknown or not installed, before anything is trained."""
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
    """Refuse a device that is unknown or not there."""
    if device not in (None, "cpu", "cuda"):
        raise UsageError(
            f"device must be cpu, cuda or None (what Accelerate finds), got {device!r}."
        )
    if device == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise UsageError("device cuda was asked for, and torch finds no GPU here.")


def _is_folder_name(name: str) -> bool:
    """Tell a name from a path, which would lead elsewhere.

    >>> [_is_folder_name(name) for name in ("mine", "", ".", "..", "a/b")]
    [True, False, False, False, False]
    """
    return name != ".." and Path(name).name == name != ""
