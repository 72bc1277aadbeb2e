"""Turns a training's exceptions into one-line messages, with tracebacks in files."""

import os
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from switch_ema.bench.errors import UsageError
from switch_ema.bench.loading import explain, message_of
from switch_ema.bench.plan.cells import Cell
from switch_ema.bench.spec import file_of, parse_task
from switch_ema.bench.text import printable
from switch_ema.bench.train.context import RunContext
from switch_ema.bench.train.data_parallel import WorkerLost
from switch_ema.bench.train.result import CellResult
from switch_ema.bench.train.values import OnProgress

FAILURES = "failures"
"""Subfolder of a run with the traceback of each failed training."""

_R = TypeVar("_R")


def explained(
    train: Callable[[Cell, RunContext, OnProgress], _R],
    cell: Cell,
    context: RunContext,
    progress: OnProgress,
) -> _R | CellResult:
    """Train one cell; an exception becomes a failed result with a one-line message.

    Restores the current folder, which a task may change.

    Raises:
        WorkerLost: one of several workers died; the training may be resumed.
    """
    home = os.getcwd()
    try:
        return train(cell, context, progress)
    except WorkerLost:
        raise
    except UsageError as error:
        message = message_of(error)
    except OSError as error:
        message = f"{type(error).__name__}: {message_of(error)}"
    except (Exception, SystemExit) as error:
        message = _describe(error, cell)
        _keep_traceback(context, cell)
    finally:
        os.chdir(home)
    return CellResult(status="failed", message=printable(message))


class TrainingFailed(Exception):
    """A worker's training failed with an error of its own; do not restart it."""


def train_or_raise(
    train: Callable[[Cell, RunContext, OnProgress], _R],
    cell: Cell,
    context: RunContext,
    progress: OnProgress,
) -> _R | CellResult:
    """Train one cell as a worker; raise if it fails, so the launcher stops the others.

    Raises:
        TrainingFailed: the training failed; the message is one line.
        WorkerLost: another worker died; the training may be resumed.
    """
    result = explained(train, cell, context, progress)
    if isinstance(result, CellResult) and result.status == "failed":
        raise TrainingFailed(result.message)
    return result


def _keep_traceback(context: RunContext, cell: Cell) -> None:
    """Write the traceback of the current exception to a file of the run."""
    path = context.folder / FAILURES / f"{cell.id}.txt"
    with suppress(OSError, ValueError):  # then the message must suffice
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(traceback.format_exc(), encoding="utf-8")


def _describe(error: BaseException, cell: Cell) -> str:
    """Describe an exception in one line, with its line in the user's file or ours."""
    file = file_of(parse_task(cell.task))
    if file is not None:
        return str(explain(error, file))
    frame = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{frame.filename}, line {frame.lineno}"
    return f"{where}: {type(error).__name__}: {message_of(error)}".replace("\n", " ")
