"""Trains cells: in this process, in several at a time, or on a Ray cluster."""

import importlib.util
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch

from switch_ema._extras import missing_extra
from switch_ema.bench.errors import UsageError
from switch_ema.bench.execute.local import Progress, _Pool, train_or_explain
from switch_ema.bench.plan.cells import Cell
from switch_ema.bench.train.loop import CellResult, Place

EXECUTORS = ("local", "ray")


def check_executor(name: str, address: str | None) -> None:
    """Refuse an executor that is unknown, not installed or wrongly addressed."""
    if name not in EXECUTORS:
        raise UsageError(f"executor must be {' or '.join(EXECUTORS)}, got {name!r}.")
    if name != "ray" and address is not None:
        raise UsageError(f"address is for --executor ray alone, got {address!r}.")
    if name == "ray" and importlib.util.find_spec("ray") is None:
        raise UsageError(missing_extra("Ray", "bench,ray", "--executor ray"))


def default_jobs() -> int:
    """Return how many cells are trained at a time here: one per core, or per GPU."""
    return 1 if torch.cuda.is_available() else os.cpu_count() or 1


def train_cells(
    cells: Sequence[Cell],
    place: Callable[[Cell], Place],
    jobs: int,
    progress: Progress,
    *,
    executor: str = "local",
    address: str | None = None,
) -> Iterator[tuple[Cell, CellResult]]:
    """Yield each cell with its result, as they finish; failures are results too.

    Args:
        cells: What to train.
        place: Where and how a cell is trained.
        jobs: Cells trained at a time; 0 for as many as fit.
        progress: Told the epochs that a cell has finished.
        executor: ``local`` or ``ray``.
        address: Of the Ray cluster; see :func:`ray.init`.
    """
    if executor == "ray":
        # Imported here, since Ray is an extra and slow to import.
        from switch_ema.bench.execute.ray import train_on_ray

        yield from train_on_ray(cells, place, jobs, progress, address=address)
        return
    jobs = jobs or default_jobs()
    if jobs == 1 or len(cells) <= 1:
        for cell in cells:
            yield cell, train_or_explain(cell, place(cell), partial(progress, cell))
    else:
        with _Pool(min(jobs, len(cells))) as pool:
            yield from pool.run(cells, place, progress)
