"""Where a cell is trained: its folder, and what the process contributes."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from switch_ema.averaging.kernels import native
from switch_ema.bench.errors import UsageError


@dataclass(frozen=True)
class RunContext:
    """Where and how a cell is trained; the numbers do not depend on it."""

    folder: Path
    """Folder of the comparison: checkpoints and trackers' files go below it."""
    device: str | None = None
    """None: Accelerate chooses."""
    trackers: tuple[str, ...] = ()
    keeps_trajectory: bool = False
    """Whether the weights of every epoch are written, too."""
    sources: str | None = None
    """Fingerprints of the tasks' files when the run began; None: not compared."""
    inputs: str | None = None
    """Those of other files that a script is given, as JSON."""
    makes_samples: bool = False
    """Whether the task is asked for pictures at the end."""
    measures_trivial: bool = False
    """Whether the task is asked for the values of trivial predictors."""
    saves_every: float = 0.0
    """Seconds between two checkpoints, at least; the last epoch always has one."""
    threads: int = 1
    """Threads of torch, which the last bits of the numbers depend on."""
    kernels: str | None = None
    """The kernels that the run was begun with: c or torch; None: not compared."""
    workers: int = 1
    """Processes that one training is spread over: see :mod:`.shared`."""


@contextmanager
def using_threads(count: int) -> Iterator[None]:
    """Let torch compute with so many threads inside.

    Several threads share the passes of small networks at a loss: while they wait for
    each other they keep the cores busy.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def kernels_here() -> str:
    """Name the kernels that averages are computed with in this process."""
    return "c" if native.is_available() else "torch"


def check_kernels(wanted: str | None) -> None:
    """Refuse to go on with other kernels, whose last bits differ."""
    found = kernels_here()
    if wanted not in (None, found):
        raise UsageError(
            f"the run was begun with the kernels {wanted!r} and would go on with "
            f"{found!r}, whose results differ in the last bits; "
            + (
                "set SWITCH_EMA_NATIVE=0, or begin a new run."
                if wanted == "torch"
                else "make a C compiler available, or begin a new run."
            )
        )


def peak_memory_mb() -> float:
    """Return the largest memory that this process has held so far, in MB."""
    import resource  # not on every system

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1024 if sys.platform != "darwin" else 1024**2)
