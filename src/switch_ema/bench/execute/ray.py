"""Trains cells on a Ray cluster, one Ray task each; only the driver writes results.

Ray restarts a task whose worker or node is lost. If the run folder is on storage shared
with the workers, the task resumes from its checkpoint.
"""

import logging
import os
import socket
import uuid
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import ray
from ray.exceptions import RayError

from switch_ema._files import write_atomically
from switch_ema.bench.errors import UsageError
from switch_ema.bench.execute.local import OnEpoch, train_or_explain
from switch_ema.bench.execute.local_workers import RETRIES
from switch_ema.bench.execute.placement import cores_of
from switch_ema.bench.execute.ray_progress import Board
from switch_ema.bench.loaders import CORES
from switch_ema.bench.plan.cells import Cell
from switch_ema.bench.train.context import RunContext
from switch_ema.bench.train.result import CellResult
from switch_ema.bench.train.values import OnProgress, latest_of

Train = Callable[[Cell, RunContext, OnProgress], CellResult]
"""Trains a cell; errors become failed results."""

LARGEST = 64 << 20
"""Largest size in bytes of the files that a worker sends along with a result."""

POLL_SECONDS = 0.5
"""Seconds between the driver's polls for finished epochs."""


@dataclass(frozen=True)
class Share:
    """Resources that one cell takes on its node."""

    cpus: int
    gpus: int


@dataclass(frozen=True)
class Job:
    """Arguments sent to a worker."""

    cell: Cell
    context: RunContext
    mark: str
    """Marker file in the run folder: a worker that sees it shares the storage."""
    home: str
    """The driver's current folder; a task's file may be relative to it."""
    cores: int
    """Cores of each worker."""


@dataclass(frozen=True)
class Outcome:
    """Result and files sent back by a worker."""

    result: CellResult
    files: dict[str, bytes] | None
    """Content by path in the run folder; empty if already there, None if too large."""


def train_on_ray(
    cells: Sequence[Cell],
    context_of: Callable[[Cell], RunContext],
    jobs: int,
    on_epoch: OnEpoch,
    *,
    address: str | None = None,
) -> Iterator[tuple[Cell, CellResult]]:
    """Yield each cell with its result as it finishes; failures are results, too.

    Ray runs as many cells at once as the cluster has room for, and at most ``jobs``
    unless that is 0. If the caller stops, the remaining cells are cancelled. A cell
    with several workers is a task that starts Ray Train and waits for it.
    """
    if not cells:
        return
    _connect(address)
    contexts = {cell.id: _absolute(context_of(cell)) for cell in cells}
    nodes = ray.nodes()  # type: ignore[no-untyped-call]
    any_context = contexts[cells[0].id]
    workers = any_context.workers
    share = share_of(
        nodes,
        jobs * workers,
        gpus=any_context.device != "cpu",
        cores=max(cores_of(cell, contexts[cell.id]) for cell in cells),
    )
    train: Callable[..., Outcome] = _task
    taken = share
    if workers > 1:
        # Imported here: Ray Train is slow to import and has extra dependencies.
        from switch_ema.bench.execute.ray_train import train_together

        jobs = jobs or trainings_at_once(nodes, share, workers)
        # The task itself only waits: resources for it could starve its own workers.
        train, taken = train_together, Share(cpus=0, gpus=0)
    task = ray.remote(train).options(
        num_cpus=taken.cpus, num_gpus=taken.gpus, max_retries=RETRIES
    )
    waiting, running = deque(cells), dict[Any, Cell]()
    folders = {context.folder for context in contexts.values()}
    with _marked(folders) as mark, Board() as board:
        try:
            while waiting or running:
                while waiting and (jobs == 0 or len(running) < jobs):
                    cell = waiting.popleft()
                    home = os.getcwd()
                    job = Job(cell, contexts[cell.id], mark, home, share.cpus)
                    running[task.remote(job, board.actor, share)] = cell
                done, _ = ray.wait(list(running), timeout=POLL_SECONDS)
                board.report(running.values(), on_epoch)
                for reference in done:
                    cell = running.pop(reference)
                    result = _fetch(reference, cell, contexts[cell.id].folder)
                    first = result.values.get(cell.methods[0], {})
                    on_epoch(cell, cell.recipe.epochs, latest_of(first))
                    yield cell, result
        finally:
            for reference in running:
                ray.cancel(reference, force=True)


def share_of(
    nodes: Sequence[Mapping[str, Any]], jobs: int, *, gpus: bool, cores: int = 1
) -> Share:
    """Divide the cluster: one GPU per cell if there are any, and a share of the CPUs.

    Args:
        nodes: nodes as listed by :func:`ray.nodes`.
        jobs: cells at once; 0 for one per GPU, or else as many as have their cores.
        gpus: whether GPUs may be used.
        cores: cores that a cell uses.
    """
    alive = [node["Resources"] for node in nodes if node["Alive"]]
    useful = [node for node in alive if gpus and node.get("GPU", 0) >= 1]
    unit = "GPU" if useful else "CPU"
    useful = useful or [node for node in alive if node.get("CPU", 0) >= 1]
    if not useful:  # an autoscaling cluster that has no nodes yet
        return Share(cpus=1, gpus=0)
    each = 1 if unit == "GPU" else cores
    slots = jobs or max(1, sum(int(node[unit]) // each for node in useful))
    cpus = [int(node.get("CPU", 0)) for node in useful]
    # At most what the smallest node has, so every node can take a cell.
    return Share(max(1, min(sum(cpus) // slots, *cpus)), int(unit == "GPU"))


def trainings_at_once(
    nodes: Sequence[Mapping[str, Any]], share: Share, workers: int
) -> int:
    """Count how many trainings of ``workers`` workers fit into the cluster.

    Raises:
        UsageError: not even one fits.
    """
    room = 0
    for node in (node["Resources"] for node in nodes if node["Alive"]):
        fits = int(node.get("CPU", 0)) // share.cpus
        room += min(fits, int(node.get("GPU", 0))) if share.gpus else fits
    if room < workers:
        unit = "GPU" if share.gpus else "CPU"
        raise UsageError(
            f"a training with {workers} workers does not fit: the Ray cluster has room "
            f"for {room} with a {unit} each."
        )
    return room // workers


def train_anywhere(
    job: Job, progress: OnProgress, train: Train = train_or_explain
) -> Outcome:
    """Train a cell in the run folder or, if this node lacks it, a temporary folder."""
    if Path(job.home).is_dir():
        os.chdir(job.home)
    os.environ[CORES] = str(job.cores)
    if (job.context.folder / job.mark).exists():
        return Outcome(train(job.cell, job.context, progress), {})
    with TemporaryDirectory(prefix="switch-ema-") as folder:
        context = replace(job.context, folder=Path(folder))
        result = train(job.cell, context, progress)
        # Send checkpoints back only for cells whose weights are kept.
        kept = "**/*" if job.context.keeps_trajectory else "trackers/**/*"
        return Outcome(result, _pack(context.folder, kept))


def _task(job: Job, board: Any, share: Share) -> Outcome:
    """Runs on the cluster, with the resources of one cell."""
    return train_anywhere(job, lambda *event: board.note.remote(job.cell.id, *event))


def _pack(folder: Path, pattern: str) -> dict[str, bytes] | None:
    paths = [path for path in folder.glob(pattern) if path.is_file()]
    if sum(path.stat().st_size for path in paths) > LARGEST:
        return None
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def _fetch(reference: Any, cell: Cell, folder: Path) -> CellResult:
    """Fetch a finished cell's result and write the files sent along with it."""
    try:
        outcome: Outcome = ray.get(reference)
    except RayError as error:
        reason = str(error).strip().partition("\n")[0]
        why = f"Ray gave it up: {type(error).__name__}: {reason}"
        return CellResult("failed", why)
    if outcome.files is None:
        warnings.warn(
            f"{cell}: its files exceed {LARGEST >> 20} MB and its worker does not "
            "share the run folder, so its weights are not kept.",
            stacklevel=2,
        )
    for name, content in (outcome.files or {}).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
    return outcome.result


def _connect(address: str | None) -> None:
    """Join a cluster or start one here; Ray leaves it when the process exits."""
    if ray.is_initialized():
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        _knock(address or "")
        ray.init(
            address,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except (OSError, RuntimeError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        raise UsageError(
            f"Ray cannot be used at {address or 'this machine'}: {reason}."
        ) from None


def _knock(address: str) -> None:
    """Fail fast if nothing listens at the address; Ray would retry for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


@contextmanager
def _marked(folders: set[Path]) -> Iterator[str]:
    """Put a marker file into the folders, as other nodes may have the same paths."""
    mark = f".ray-{uuid.uuid4().hex}"
    try:
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / mark).touch()
        yield mark
    finally:
        for folder in folders:
            (folder / mark).unlink(missing_ok=True)


def _absolute(context: RunContext) -> RunContext:
    return replace(context, folder=context.folder.resolve())
