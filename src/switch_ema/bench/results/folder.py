"""The folder of a run: the names of its files, its owner and its lock."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from fnmatch import fnmatch
from pathlib import Path

from filelock import FileLock, Timeout

from switch_ema._files import write_atomically
from switch_ema.bench.errors import UsageError
from switch_ema.bench.execute.scripts import LOGS
from switch_ema.bench.fingerprints import changed_inputs
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.plan.sweep_points import (
    POINTS,
    SweepPoint,
    dump_points,
    load_points,
    trained,
)
from switch_ema.bench.plan.task_snapshot import FACTS, dump_facts
from switch_ema.bench.results.environment import describe_environment
from switch_ema.bench.results.store import Results
from switch_ema.bench.spec import FOLDER
from switch_ema.bench.text import listed
from switch_ema.bench.train.context import check_kernels, kernels_here

RESULTS, REPORT, CONFIG = "results.sqlite", "report.html", "config.json"
_TUNED, _THREADS, _KERNELS = "tuned config", "threads", "kernels"
_LEFTOVERS = (".*.partial", "*.partial", "partial", ".tmp*", ".ray-*")
INPUTS = "inputs"
"""Name of the note on files that a script is given besides its code."""
WORKERS = "workers per training"
"""Name of the note on how many workers each training of a run has."""


def open_run(folder: Path) -> tuple[CompareConfig, Results]:
    """Open a finished or unfinished run; its configuration names all that it trains.

    These are all points of a sweep or, once they are chosen, the tuned methods.
    """
    results = Results(folder / RESULTS)
    meta = results.meta()
    stored = meta.get(_TUNED) or meta.get("config")
    if stored is None:
        raise UsageError(f"{folder} has no configuration; was it ever started?")
    config = CompareConfig.from_json(stored, str(folder))
    return trained(config, load_points(meta)), results


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes out of a run folder."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise UsageError(
            f"{folder} is in use by another process; wait for it or choose --name."
        ) from None
    except (OSError, NotImplementedError) as error:
        if getattr(error, "filename", None):  # such as a folder that is read-only
            raise
        reason = getattr(error, "strerror", None) or error
        raise UsageError(
            f"{lock.lock_file} cannot be locked ({reason}); choose a folder on a disk "
            "that has file locks with --out."
        ) from None
    try:
        yield
    finally:
        lock.release()


def remove_leftovers(folder: Path) -> None:
    """Delete what killed processes have left; only the owner of the lock may call it.

    These are files that were being written, and the marks of a Ray cluster. Below
    ``logs`` scripts write under names of their own, and everything stays.
    """
    for root, folders, files in os.walk(folder):
        if Path(root) == folder and LOGS in folders:
            folders.remove(LOGS)
        for name in files:
            if any(fnmatch(name, pattern) for pattern in _LEFTOVERS):
                Path(root, name).unlink(missing_ok=True)


def claim(
    results: Results,
    config: CompareConfig,
    folder: Path,
    points: Sequence[SweepPoint] = (),
) -> None:
    """Make a new run folder this comparison's; refuse that of another comparison.

    Args:
        results: the run's.
        config: as it was given.
        folder: of the run.
        points: those of its sweep.
    """
    stored = results.meta()
    if stored.get("config", config.to_json()) != config.to_json():
        raise UsageError(
            f"{folder} holds a comparison with other settings; choose another --name, "
            "or delete it."
        )
    if stored.get("sources", config.sources) != config.sources:
        raise UsageError(
            f"the file of a task has changed since {folder} was begun, and results of "
            "both must not be mixed; choose another --name, or delete it."
        )
    if changed := changed_inputs(stored.get(INPUTS)):
        raise UsageError(
            f"{listed(changed)} changed since {folder} was begun, and results of both "
            "must not be mixed; choose another --name, or delete it. If the script "
            f"writes there, let it write to {FOLDER}."
        )
    if INPUTS not in stored:
        results.set_meta(INPUTS, config.inputs)
    results.set_meta("config", config.to_json())
    results.set_meta("sources", config.sources)
    results.set_meta(FACTS, dump_facts(trained(config, points).tasks))
    if points:
        results.set_meta(POINTS, dump_points(points))
    write_atomically(folder / CONFIG, config.to_json())
    environment = describe_environment()
    environment["date"] = stored.get("environment.date") or date.today().isoformat()
    for key, value in environment.items():
        results.set_meta(f"environment.{key}", value)


@dataclass(frozen=True)
class Arithmetic:
    """What the last bits of a run's numbers depend on, besides its configuration."""

    threads: int
    """Threads of torch in each training."""
    kernels: str
    """What averages are computed with: c or torch."""
    workers: int = 1
    """Workers that divide the batches of each training."""


def settle_arithmetic(
    results: Results, threads: int | None, workers: int = 1
) -> Arithmetic:
    """Choose the arithmetic of a new run, or keep to that of a run that is continued.

    So the numbers are the same however a run is divided into processes, and however
    often it is stopped. Kernels that have changed since are refused.

    Args:
        results: the run's.
        threads: as the user wants it; None for the run's own, which is 1 at first.
        workers: as the user wants it.
    """
    stored = results.meta()
    known = stored.get(_THREADS)
    if known is not None and threads not in (None, int(known)):
        raise UsageError(
            f"{results.path.parent} was begun with threads {known}, and results with "
            f"{threads} must not be mixed with it; leave out --threads, or choose "
            "another --name."
        )
    # Runs of earlier versions have had one worker, and no note of it.
    before = stored.get(WORKERS, "1" if known is not None else str(workers))
    if int(before) != workers:
        raise UsageError(
            f"{results.path.parent} was begun with workers_per_training {before}, and "
            f"results with {workers} must not be mixed with it, as their last digits "
            "differ; choose another --name."
        )
    settled = Arithmetic(
        int(known or threads or 1), stored.get(_KERNELS, kernels_here()), workers
    )
    check_kernels(settled.kernels)
    results.set_meta(_THREADS, str(settled.threads))
    results.set_meta(_KERNELS, settled.kernels)
    results.set_meta(WORKERS, str(settled.workers))
    return settled


def threads_of(results: Results) -> int:
    """Return the threads of torch that a run was begun with."""
    return int(results.meta().get(_THREADS, 1))


def note_tuned(
    results: Results, config: CompareConfig, points: Sequence[SweepPoint]
) -> None:
    """Store what tuning has made of the configuration."""
    results.set_meta(POINTS, dump_points(points))
    results.set_meta(_TUNED, config.to_json())
