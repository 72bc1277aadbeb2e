"""Places trainings on GPUs and cores."""

import os
from collections.abc import Sequence

import torch

from switch_ema.bench.errors import UsageError
from switch_ema.bench.loading import load_task_class, with_readers
from switch_ema.bench.plan.cells import Cell
from switch_ema.bench.train.context import RunContext

VISIBLE = "CUDA_VISIBLE_DEVICES"


def cores_of(cell: Cell, context: RunContext) -> int:
    """Return the cores of one worker: its threads, and its processes that read data."""
    spec = with_readers(cell.task, context.readers)
    task, _ = load_task_class(spec)
    return context.threads + task.reading_processes(spec.options)


def found_gpus(device: str | None) -> list[str]:
    """List the GPUs that this process may use, as ``CUDA_VISIBLE_DEVICES`` names them.

    Args:
        device: cpu uses none.
    """
    if device == "cpu":
        return []
    count = torch.cuda.device_count()
    given = os.environ.get(VISIBLE)
    return given.split(",")[:count] if given else list(map(str, range(count)))


def default_jobs(gpus: Sequence[str], workers: int) -> int:
    """Return how many trainings fit: one GPU, or else one core, for each worker.

    >>> default_jobs(["0", "1", "2", "3"], workers=2)
    2
    """
    places = len(gpus) or os.cpu_count() or 1
    return max(1, places // workers)


def place(gpus: Sequence[str], jobs: int, workers: int) -> list[str | None]:
    """Return ``CUDA_VISIBLE_DEVICES`` of each training; None leaves it as it is.

    Trainings share GPUs only if there are more workers than GPUs in all.

    >>> place(["0", "1", "2", "3"], jobs=2, workers=2)
    ['0,1', '2,3']
    >>> place(["0", "1"], jobs=3, workers=1)
    ['0', '1', '0']
    >>> place([], jobs=2, workers=4)
    [None, None]

    Raises:
        UsageError: one training has more workers than there are GPUs.
    """
    if not gpus:
        return [None] * jobs
    if workers > len(gpus):
        raise UsageError(
            f"a training with {workers} workers needs as many GPUs, and this machine "
            f"has {len(gpus)}; use --workers-per-training {len(gpus)}, or --device cpu."
        )
    starts = (job * workers for job in range(jobs))
    return [
        ",".join(gpus[(start + index) % len(gpus)] for index in range(workers))
        for start in starts
    ]
