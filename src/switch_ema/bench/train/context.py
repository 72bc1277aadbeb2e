"""Run context of a cell: its folder, device, threads, workers and kernels."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from switch_ema.averaging.kernels import native
from switch_ema.bench.errors import UsageError


@dataclass(frozen=True)
class RunContext:
    """Where and how to train a cell; the experiment itself is in the cell."""

    folder: Path
    """Run folder, with checkpoints and tracker files below it."""
    device: str | None = None
    """cpu or cuda; None lets Accelerate choose."""
    trackers: tuple[str, ...] = ()
    keeps_trajectory: bool = False
    """Whether to save the weights after every epoch."""
    sources: str | None = None
    """Fingerprints of the task files when the run started; None skips the check."""
    inputs: str | None = None
    """Fingerprints of a script's other input files, as JSON."""
    makes_samples: bool = False
    """Whether to collect sample images from the task at the end."""
    measures_trivial: bool = False
    """Whether to collect the scores of trivial predictors from the task."""
    saves_every: float = 0.0
    """Minimum seconds between checkpoints at the ends of epochs; the last epoch is
    always saved."""
    checkpoint_every: float = math.inf
    """Seconds after which a checkpoint is due within an epoch."""
    threads: int = 1
    """Torch threads; they affect the last bits of the results."""
    kernels: str | None = None
    """Kernels that the run started with, c or torch; None skips the check."""
    readers: int | None = None
    """Processes that read the data; None: the task's own choice."""
    skip_broken: int = 0
    """Broken files of the data that a training may leave out."""
    workers: int = 1
    """Data-parallel processes per training: see :mod:`.data_parallel`."""
    keep: str = "none"
    """Weights to keep as files: none, last, or all, of every evaluated epoch."""
    commit: str = ""
    """Git state of the folder in which the run was started, for kept weights."""
    precision: str | None = None
    """Precision of the task's finished trainings; None if there are none."""


@contextmanager
def using_threads(count: int) -> Iterator[None]:
    """Set the number of torch threads inside the context.

    Small networks run slower on several threads, which busy-wait for each other.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def kernels_here() -> str:
    """Return which averaging kernels this process uses: c or torch."""
    return "c" if native.is_available() else "torch"


def check_kernels(wanted: str | None) -> None:
    """Refuse to resume with different kernels: results differ in the last bits."""
    found = kernels_here()
    if wanted not in (None, found):
        raise UsageError(
            f"the run started with the kernels {wanted!r} and cannot continue with "
            f"{found!r}, whose results differ in the last bits; "
            + (
                "set SWITCH_EMA_NATIVE=0, or start a new run."
                if wanted == "torch"
                else "install a C compiler, or start a new run."
            )
        )
