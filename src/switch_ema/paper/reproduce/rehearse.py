"""Rehearses rows of the paper's tables, each in a process of its own.

A process of its own gives each row its own peak of memory, and a crash or a process
that the system kills ends one row only.
"""

import inspect
import logging
import os
import signal
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from switch_ema._files import write_atomically
from switch_ema.bench.errors import UsageError
from switch_ema.bench.execute.guard import die_with_parent
from switch_ema.bench.execute.local import how_it_died
from switch_ema.bench.execute.local_workers import allow_processes
from switch_ema.bench.execute.options import RunOptions
from switch_ema.bench.loading import load_task_class, message_of
from switch_ema.bench.plan.cells import Cell, make_plan
from switch_ema.bench.spec import parse_task
from switch_ema.bench.text import printable
from switch_ema.bench.train.context import RunContext
from switch_ema.bench.train.rehearsal import (
    CellRehearsal,
    RehearsalLimits,
    rehearse_cell,
)
from switch_ema.paper.reproduce.plan import RowPlan
from switch_ema.paper.reproduce.rehearsals import FOLDER, Rehearsal, this_machine
from switch_ema.paper.reproduce.rehearse_options import RehearseOptions
from switch_ema.zoo.data import sources
from switch_ema.zoo.data.sample_files import write_sample
from switch_ema.zoo.models.pretrained import NONE, source_name, weight_sources
from switch_ema.zoo.tasks.generation.frechet import write_untrained_inception
from switch_ema.zoo.tasks.registry import needed_data, needed_weights

_GENERATED = "generated"
_CPU_BATCH = 2
"""Examples per step on a CPU, whose memory does not hold a batch of a GPU."""
_INCEPTION = source_name("inception")
_SIDES = ("image_size", "side")
"""Names of the option that sets the height and width of images."""


@dataclass(frozen=True, kw_only=True)
class DataCheck:
    """Which data of a row is there."""

    found: Mapping[str, str]
    """Folder or file of each dataset that was found."""
    missing: tuple[str, ...]
    """Names of the other datasets."""
    weights: tuple[str, ...] = ()
    """Pre-trained weights that were not found, named as `switch-ema data` does."""


def check_data(plan: RowPlan) -> DataCheck:
    """Look for the files of a row's data, without reading them."""
    found, missing, weights = {}, [], []
    there = {source.name for source in weight_sources() if source.found}
    for task in plan.config.tasks:
        spec = parse_task(task)
        for name in needed_data(spec.name, spec.options):
            folder = spec.options.get("folder") or sources.find_folder(name)
            if folder is None:
                missing.append(name)
            else:
                found[name] = str(folder)
        names = map(source_name, needed_weights(spec.name, spec.options))
        weights += [name for name in names if name not in there]
    return DataCheck(
        found=found,
        missing=tuple(dict.fromkeys(missing)),
        weights=tuple(dict.fromkeys(weights)),
    )


def rehearse_row(plan: RowPlan, options: RehearseOptions, run: RunOptions) -> Rehearsal:
    """Rehearse a row in a new process; a failure becomes a sentence."""
    started, check = time.perf_counter(), check_data(plan)
    batch = options.rehearse_batch or (None if _has_gpu(run) else _CPU_BATCH)
    settings: dict[str, Any] = {
        "table": plan.table.name,
        "row": plan.row.name,
        "task": plan.config.tasks[0],
        "data": _GENERATED if check.missing else ", ".join(check.found.values()),
        "missing": (*check.missing, *check.weights),
        "batch": batch,
        "side": options.rehearse_side,
        "machine": this_machine(),
        "when": datetime.now(timezone.utc).date().isoformat(),
    }
    try:
        with TemporaryDirectory(prefix="switch-ema-") as folder:
            own = _in_place_of_weights(check, Path(folder))
            cell = reduced_cell(plan, batch, options.rehearse_side, own)
            data = Path(folder) / "data" if check.missing else None
            if data is not None:
                for name in (*check.found, *check.missing):
                    write_sample(name, data, count=_sample_size(plan, batch, options))
            limits = RehearsalLimits(
                steps=options.max_steps, evaluated=options.max_eval
            )
            context = RunContext(
                Path(folder),
                device=run.device,
                threads=run.threads or 1,
                readers=run.readers if plan.readers is None else plan.readers,
            )
            found = _in_process(_Work(cell, context, limits, data), run.timeout)
    except UsageError as error:
        found = _Failure(str(error))
    if isinstance(found, _Failure):
        settings["error"] = found.keep(run.out, plan)
    else:
        settings["measured"] = found
    return Rehearsal(**settings, seconds=time.perf_counter() - started)


def _in_place_of_weights(check: DataCheck, folder: Path) -> dict[str, Any]:
    """Return options for random weights where pre-trained ones are missing."""
    own: dict[str, Any] = {}
    for name in check.weights:
        if name == _INCEPTION:
            own["inception"] = str(folder / "inception.pth")
            write_untrained_inception(folder / "inception.pth")
        else:
            own["weights"] = NONE
    return own


def _has_gpu(run: RunOptions) -> bool:
    import torch

    return run.device != "cpu" and torch.cuda.is_available()


def _sample_size(plan: RowPlan, batch: int | None, options: RehearseOptions) -> int:
    """Return how many examples to generate: enough for all steps and evaluations."""
    from switch_ema.paper.reproduce.full_size import full_size

    size = full_size(plan.config.tasks[0])
    step = batch or (64 if size.unit == "words" else size.batch)
    return max(step * options.max_steps, options.max_eval, 32)


def reduced_cell(
    plan: RowPlan,
    batch: int | None,
    side: int | None,
    options: Mapping[str, Any] | None = None,
) -> Cell:
    """Return the cell of a row with most methods, with smaller batches and images.

    With a smaller batch, the optimizer steps after each one; nothing is accumulated.

    Args:
        plan: the row.
        batch: examples per step; None: the row's.
        side: height and width of images; None: the row's.
        options: other options of the task.
    """
    task = plan.config.tasks[0]
    spec = parse_task(task)
    taken = inspect.signature(load_task_class(task)[0]).parameters
    own = {**(options or {})}
    if batch is not None and "batch" in taken:
        own["batch"] = batch
    if side is not None:
        own |= {name: side for name in _SIDES if name in taken}
        if "test_clips" in taken:  # the published clips have one size
            own["test_clips"] = "drawn"
    smaller = str(replace(spec, options={**spec.options, **own}))
    cells = make_plan(replace(plan.config, tasks=(smaller,)))
    cell = max(cells, key=lambda cell: len(cell.methods))
    if batch is None:
        return cell
    return replace(cell, recipe=replace(cell.recipe, accumulate=1))


@dataclass(frozen=True)
class _Work:
    """What the process of a row does."""

    cell: Cell
    context: RunContext
    limits: RehearsalLimits
    data: Path | None
    """Folder of generated data; None: the user's."""


@dataclass(frozen=True)
class _Failure:
    """Why a rehearsal failed."""

    message: str
    trace: str = ""

    def keep(self, out: Path, plan: RowPlan) -> str:
        """Store the traceback, if there is one, and return the message."""
        if not self.trace:
            return self.message
        path = out / FOLDER / plan.table.name / f"{plan.row.name}.traceback.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, self.trace)
        return f"{self.message} (traceback: {path})"


def _in_process(work: _Work, timeout: float | None) -> CellRehearsal | _Failure:
    """Run the work in a new process and wait for its result."""
    context = get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process: BaseProcess = context.Process(
        target=_rehearse, args=(theirs, os.getpid(), work)
    )
    process.start()
    theirs.close()
    try:
        if not ours.poll(timeout):
            return _Failure(f"no result within {timeout:g} s")
        found: CellRehearsal | _Failure = ours.recv()
        return found
    except (EOFError, OSError):
        return _Failure(f"its process died {how_it_died(process)}")
    finally:
        process.join(timeout=5)
        process.kill()  # after a timeout or Ctrl-C; its loaders end with it
        process.join()
        ours.close()


def _rehearse(connection: Connection, parent: int, work: _Work) -> None:
    """Rehearse in this process, which ends with its parent, and send the result."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles it
    die_with_parent(parent)
    allow_processes()
    # Libraries log warnings about each other into the progress of the command.
    logging.disable(logging.WARNING)
    if work.data is not None:
        os.environ[sources.FOLDER] = str(work.data)
    _rehearse_here(connection, work)


def _rehearse_here(connection: Connection, work: _Work) -> None:
    result: CellRehearsal | _Failure
    try:
        result = rehearse_cell(work.cell, work.context, work.limits)
    except UsageError as error:
        result = _Failure(printable(message_of(error)))
    except Exception as error:
        message = f"{type(error).__name__}: {message_of(error)}".replace("\n", " ")
        result = _Failure(printable(message), traceback.format_exc())
    connection.send(result)
    connection.close()
