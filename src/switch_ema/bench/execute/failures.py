"""What goes wrong in a training, told in one line; the traceback is in a file."""

import os
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from switch_ema.bench.errors import UsageError
from switch_ema.bench.loading import explain, told
from switch_ema.bench.plan.cells import Cell
from switch_ema.bench.spec import is_file, parse_task
from switch_ema.bench.text import printable
from switch_ema.bench.train.context import RunContext
from switch_ema.bench.train.data_parallel import WorkerLost
from switch_ema.bench.train.result import CellResult
from switch_ema.bench.train.values import OnProgress

FAILURES = "failures"
"""Folder below that of a run: the traceback of each training that failed."""

_R = TypeVar("_R")


def explained(
    train: Callable[[Cell, RunContext, OnProgress], _R],
    cell: Cell,
    context: RunContext,
    progress: OnProgress,
) -> _R | CellResult:
    """Train one cell; what goes wrong is told in the result, in one line.

    A task that changes the current folder changes it for itself alone.

    Raises:
        WorkerLost: one of several workers has died; the training may go on.
    """
    home = os.getcwd()
    try:
        return train(cell, context, progress)
    except WorkerLost:
        raise
    except UsageError as error:
        message = told(error)
    except OSError as error:
        message = f"{type(error).__name__}: {told(error)}"
    except (Exception, SystemExit) as error:
        message = _describe(error, cell)
        _keep_traceback(context, cell)
    finally:
        os.chdir(home)
    return CellResult(status="failed", message=printable(message))


class TrainingFailed(Exception):
    """A worker's training has failed by itself; it is not to be started again."""


def train_or_raise(
    train: Callable[[Cell, RunContext, OnProgress], _R],
    cell: Cell,
    context: RunContext,
    progress: OnProgress,
) -> _R | CellResult:
    """Train one cell as a worker that has to fail, for its launcher to end the others.

    Raises:
        TrainingFailed: with what went wrong, in one line.
        WorkerLost: another worker has died; the training may go on.
    """
    result = explained(train, cell, context, progress)
    if isinstance(result, CellResult) and result.status == "failed":
        raise TrainingFailed(result.message)
    return result


def _keep_traceback(context: RunContext, cell: Cell) -> None:
    """Write the traceback of what is being handled to a file of the run."""
    path = context.folder / FAILURES / f"{cell.id}.txt"
    with suppress(OSError, ValueError):  # the message has to do
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(traceback.format_exc(), encoding="utf-8")


def _describe(error: BaseException, cell: Cell) -> str:
    """Tell an exception in one line: where in the user's file, or else in ours."""
    spec = parse_task(cell.task)
    if is_file(spec):
        return str(explain(error, spec.name.rpartition(":")[0]))
    frame = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{frame.filename}, line {frame.lineno}"
    return f"{where}: {type(error).__name__}: {told(error)}".replace("\n", " ")
