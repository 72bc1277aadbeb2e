"""The run folder: its file names, its owner and its lock."""

import os
from collections.abc import Iterator, Mapping, Sequence
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
from switch_ema.bench.plan.task_snapshot import FACTS, dump_facts, retrained
from switch_ema.bench.results.environment import describe_environment
from switch_ema.bench.results.store import MEMORY, OF_STATE, Results
from switch_ema.bench.spec import FOLDER
from switch_ema.bench.text import listed, read_utf8
from switch_ema.bench.train.context import check_kernels, kernels_here

RESULTS, REPORT, CONFIG = "results.sqlite", "report.html", "config.json"
_TUNED, _THREADS, _KERNELS = "tuned config", "threads", "kernels"
_LEFTOVERS = (".*.partial", "*.partial", "partial", ".tmp*", ".ray-*")
INPUTS = "inputs"
"""Metadata key: fingerprints of a script's input files, besides its code."""
WORKERS = "workers per training"
"""Metadata key: data-parallel workers of each training."""


def open_run(folder: Path) -> tuple[CompareConfig, Results]:
    """Open a run, finished or not; the configuration names everything it trains.

    That includes all points of a sweep and, once chosen, the tuned methods.
    """
    results = Results(folder / RESULTS)
    return config_of(results.meta(), folder), results


def config_of(meta: Mapping[str, str], where: Path) -> CompareConfig:
    """Return what a run with this metadata trains: see :func:`open_run`."""
    stored = meta.get(_TUNED) or meta.get("config")
    if stored is None:
        raise UsageError(f"{where} has no configuration; was it ever started?")
    config = CompareConfig.from_json(stored, str(where))
    return trained(config, load_points(meta))


def run_folder(config: CompareConfig, out: Path, name: str | None = None) -> Path:
    """Return the folder of a comparison, below ``out``."""
    folder = out / (name or config.default_name)
    if name is None and not folder.exists():
        earlier = out / config.earlier_name
        return earlier if earlier.exists() else folder
    return folder


def stored_version(config: CompareConfig, folder: Path) -> CompareConfig | None:
    """Return a run's configuration, if it differs in nothing but its seeds.

    Without a lock, so this serves only to show the plan; :func:`claim` decides.
    """
    try:
        stored = CompareConfig.from_json(read_utf8(folder / CONFIG))
    except (OSError, UsageError):  # none, or damaged; then the results decide
        return None
    return stored if stored.identity == config.identity else None


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a run folder against other processes."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise UsageError(
            f"{folder} is in use by another process; wait for it or choose --name."
        ) from None
    except (OSError, NotImplementedError) as error:
        if getattr(error, "filename", None):  # about the file, such as no permission
            raise
        reason = getattr(error, "strerror", None) or error
        raise UsageError(
            f"{lock.lock_file} cannot be locked ({reason}); use --out to choose a "
            "folder on a file system with file locks."
        ) from None
    try:
        yield
    finally:
        lock.release()


def is_running(folder: Path) -> bool:
    """Whether a process holds the lock of a run folder."""
    file = folder / ".lock"
    if not file.exists():  # locking would create it
        return False
    lock = FileLock(file)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return True
    except (OSError, NotImplementedError):  # no permission, or no locks here
        return False
    lock.release()
    return False


def remove_leftovers(folder: Path) -> None:
    """Delete leftovers of killed processes; the caller must hold the lock.

    These are partly written files and Ray marker files. Nothing below ``logs`` is
    deleted, since scripts choose their own file names there.
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
) -> CompareConfig:
    """Claim a run folder for this comparison; refuse one of another comparison.

    Args:
        results: results of the run.
        config: configuration as given by the user.
        folder: the run folder.
        points: points of its sweep.

    Returns:
        The configuration of the run: with the stored seeds if they are more, else
        extended to the given number.
    """
    stored = results.meta()
    before = None
    if "config" in stored:
        before = CompareConfig.from_json(stored["config"], str(folder))
        if before.identity != config.identity:
            raise UsageError(
                f"{folder} has a comparison with other settings; choose another "
                "--name, or delete the folder."
            )
        config = config.extending(before)
    if stored.get("sources", config.sources) != config.sources:
        raise UsageError(
            f"the file of a task has changed since {folder} was started, and results "
            "of both versions must not be mixed; choose another --name, or delete the "
            "folder."
        )
    if changed := changed_inputs(stored.get(INPUTS)):
        raise UsageError(
            f"{listed(changed)} changed since {folder} was started, and results of "
            "both versions must not be mixed; choose another --name, or delete the "
            f"folder. If the script writes there, let it write to {FOLDER}."
        )
    if changed := retrained(stored, trained(config, points).tasks):
        raise UsageError(
            f"this version trains {listed(changed)} differently than when {folder} was "
            "started, and results of both must not be mixed; choose another --name or "
            "--out, or delete the folder."
        )
    if "config" not in stored:
        results.set_meta(MEMORY, OF_STATE)
    if INPUTS not in stored:
        results.set_meta(INPUTS, config.inputs)
    elif config != before:
        results.set_meta(INPUTS, config.inputs_added_to(stored[INPUTS]))
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
    return config


@dataclass(frozen=True)
class Arithmetic:
    """Settings that affect only the last bits of a run's results."""

    threads: int
    """Torch threads per training."""
    kernels: str
    """Averaging kernels: c or torch."""
    workers: int = 1
    """Data-parallel workers per training."""


def settle_arithmetic(
    results: Results, threads: int | None, workers: int = 1
) -> Arithmetic:
    """Choose the arithmetic of a new run, or keep that of a resumed run.

    This keeps results bitwise equal however a run is split into processes and however
    often it is interrupted. Different kernels are refused.

    Args:
        results: results of the run.
        threads: requested threads; None for the run's setting, or 1 for a new run.
        workers: requested workers.
    """
    stored = results.meta()
    known = stored.get(_THREADS)
    if known is not None and threads not in (None, int(known)):
        raise UsageError(
            f"{results.path.parent} was started with --threads {known}, and results "
            f"with {threads} differ in their last digits; leave out --threads, or "
            "choose another --name."
        )
    # Earlier versions had one worker and did not store the number.
    before = stored.get(WORKERS, "1" if known is not None else str(workers))
    if int(before) != workers:
        raise UsageError(
            f"{results.path.parent} was started with workers_per_training {before}, "
            f"and results with {workers} differ in their last digits; choose another "
            "--name."
        )
    settled = Arithmetic(
        int(known or threads or 1), stored.get(_KERNELS, kernels_here()), workers
    )
    check_kernels(settled.kernels)
    results.set_meta(_THREADS, str(settled.threads))
    results.set_meta(_KERNELS, settled.kernels)
    results.set_meta(WORKERS, str(settled.workers))
    return settled


def arithmetic_of(meta: Mapping[str, str]) -> Arithmetic:
    """Return the arithmetic of a run with this metadata."""
    return Arithmetic(
        int(meta.get(_THREADS, 1)), meta.get(_KERNELS, "c"), int(meta.get(WORKERS, 1))
    )


def threads_of(results: Results) -> int:
    """Return the number of torch threads of a run."""
    return int(results.meta().get(_THREADS, 1))


def note_tuned(
    results: Results, config: CompareConfig, points: Sequence[SweepPoint]
) -> None:
    """Store the tuned configuration and its points."""
    results.set_meta(POINTS, dump_points(points))
    results.set_meta(_TUNED, config.to_json())
