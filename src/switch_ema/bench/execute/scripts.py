"""Runs a command of the user's as one cell: its script reports through a trial."""

import errno
import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from switch_ema.bench.errors import UsageError
from switch_ema.bench.execute import guard
from switch_ema.bench.loading import check_unchanged
from switch_ema.bench.methods import method_of, options_in_epochs
from switch_ema.bench.plan.cells import Cell
from switch_ema.bench.recipe import is_usable
from switch_ema.bench.spec import FOLDER, command_of, task_slug
from switch_ema.bench.text import listed
from switch_ema.bench.train.context import RunContext, check_kernels
from switch_ema.bench.train.result import CellResult
from switch_ema.bench.train.trial import COUNTING, NOTES, TRIAL, WAITING, processes_of
from switch_ema.bench.train.values import Latest, OnProgress, latest_of

LOGS = "logs"
"""Folder of a run with the values and the output of its scripts."""
LAST_LINES = 3
"""Lines of the error output that a failure is told with."""

_POLL_SECONDS = 0.2
_ERROR = re.compile(r"^(\[rank\d+\]:\s*)?[\w.]*(Error|Exception|Interrupt|Exit)\b")
_LAUNCHER = "ChildFailedError"
"""What torchrun raises after a script has failed, with none of its words."""


@dataclass(frozen=True)
class _Files:
    """The files of one cell in the folder of its run."""

    stem: str

    @classmethod
    def of(cls, folder: Path, cell: Cell) -> "_Files":
        name = f"{task_slug(cell.task)}-seed-{cell.seeds[0]}-{cell.id}"
        return cls(str(folder / LOGS / name))

    @property
    def values(self) -> Path:
        return Path(f"{self.stem}.jsonl")

    @property
    def output(self) -> Path:
        return Path(f"{self.stem}.out")

    @property
    def errors(self) -> Path:
        return Path(f"{self.stem}.err")

    @property
    def lock(self) -> Path:
        return Path(f"{self.stem}.lock")

    @property
    def folder(self) -> Path:
        return Path(f"{self.stem}.files")


def run_script(
    cell: Cell, context: RunContext, progress: OnProgress = lambda epoch, latest: None
) -> CellResult:
    """Run the command of a cell to its end; what it reports is the result.

    An earlier attempt leaves nothing behind: the averages are not in the checkpoints of
    a script, so it is trained from the beginning, with an empty folder.
    """
    if context.sources is not None:
        check_unchanged(cell.task, context.sources, context.inputs)
    check_kernels(context.kernels)
    files = _Files.of(context.folder, cell)
    files.values.parent.mkdir(parents=True, exist_ok=True)
    _wait_for_earlier(files.lock)
    for path in (files.values, files.lock):  # new ones: an old process has the old ones
        path.unlink(missing_ok=True)
    files.values.touch()
    if FOLDER in cell.task:
        shutil.rmtree(files.folder, ignore_errors=True)
        files.folder.mkdir()
    told = {
        "methods": cell.methods,
        "log": str(files.values.absolute()),
        "lock": str(files.lock.absolute()),
    }
    threads = str(context.threads)
    environment = {
        **os.environ,
        TRIAL: json.dumps(told),
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "PYTHONUNBUFFERED": "1",
    }
    if context.device == "cpu":
        environment["CUDA_VISIBLE_DEVICES"] = ""
    with _locked(files.lock) as lock:
        words = command_of(cell.task, cell.seeds[0], files.folder.absolute())
        code = _run(words, environment, files, lock, progress, cell.methods[0])
    files.lock.unlink(missing_ok=True)
    rows = _read_rows(files.values)
    processes = processes_of(rows)
    if len(processes) > 1:
        return CellResult("failed", _several(processes))
    if code != 0:
        return CellResult("failed", f"{_how_it_ended(code)}; {_last_words(files)}")
    return _result_of(rows)


def with_known_metric(
    result: CellResult, wanted: str | None, known: str | None
) -> CellResult:
    """Refuse a result that is not about the metric of its comparison.

    Args:
        result: of a script.
        wanted: the metric that the user has named.
        known: what earlier trainings of the run have reported, as JSON.
    """
    if not result.values:
        return result
    by_metric = next(iter(result.values.values()))
    names, before = list(by_metric), json.loads(known or "[]")
    if wanted is not None and wanted not in names:
        why = f"it reports {listed(names)}, not {wanted}, which is to be compared"
        return CellResult("failed", why)
    if wanted is None and before and set(before) != set(names):
        why = f"it reports {listed(names)}, where others have reported {listed(before)}"
        return CellResult("failed", why)
    decides = wanted or (before or names)[0]
    last = [values[decides][-1][0] for values in result.values.values()]
    if not all(map(is_usable, last)):
        return replace(result, status="diverged", message=f"its last {decides} is nan")
    return result


def _run(
    words: Sequence[str],
    environment: dict[str, str],
    files: _Files,
    lock: int,
    progress: OnProgress,
    method: str,
) -> int:
    """Start a command and wait for it, telling its evaluations: those of one method.

    However this process ends, the guard ends all processes of the command; it holds
    the lock, too, until they are gone.
    """
    if shutil.which(words[0], path=environment.get("PATH")) is None:
        number = errno.EACCES if Path(words[0]).exists() else errno.ENOENT
        raise UsageError(f"{words[0]} cannot be started: {os.strerror(number)}")
    ending, ours = os.pipe()
    with files.output.open("wb") as output, files.errors.open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", guard.__file__, f"{ending},{lock}", *words],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            env=environment,
            pass_fds=(ending, lock),
            start_new_session=True,  # Ctrl-C is for us: the guard ends in its own time
        )
        os.close(ending)
        told = 0
        try:
            while True:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_POLL_SECONDS)
                lines = files.values.read_bytes().split(b"\n")[1:-1]
                if len(lines) > told:
                    told = len(lines)
                    progress(told, _latest_of(lines[-1], method))
                if process.returncode is not None:
                    return process.returncode
        finally:
            os.close(ours)
            process.wait()


def _latest_of(line: bytes, method: str) -> Latest | None:
    """Read the first metric of an evaluation; a launcher may have begun anew."""
    metrics = json.loads(line).get(method, {})
    return latest_of({metric: [[value]] for metric, value in metrics.items()})


@contextmanager
def _locked(path: Path) -> Iterator[int]:
    """Hold a lock while this process or the guard lives; trials look for it."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:  # it does not name the file
            raise OSError(error.errno, error.strerror, str(path)) from None
        yield file.fileno()


def _wait_for_earlier(lock: Path) -> None:
    """Wait until the guard of an earlier attempt, if one was killed, has done its work.

    Its script could write to files that are begun anew.
    """
    if lock.is_file():
        with lock.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH)


def _how_it_ended(code: int) -> str:
    return f"ended by signal {-code}" if code < 0 else f"ended with exit code {code}"


def _last_words(files: _Files) -> str:
    """Return the last lines of the error output, up to that with the error."""
    text = files.errors.read_text(encoding="utf-8", errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    found = [
        index
        for index, line in enumerate(lines)
        if _ERROR.match(line) and _LAUNCHER not in line
    ]
    end = found[-1] + 1 if found else len(lines)
    words = " | ".join(lines[max(0, end - LAST_LINES) : end])
    return f"{words or 'its error output is empty'} (all of it: {files.errors})"


def _never_ended(methods: Sequence[str]) -> str:
    name = method_of(methods[0]).spec.name
    option = options_in_epochs(method_of(methods[0]))[0]
    return (
        "the script never called trial.end_epoch, which "
        f"{listed(methods)} waited for; call it after each epoch, or count steps, as "
        f"in {name}:{option}=100it"
    )


def _several(processes: Sequence[int]) -> str:
    """Say that nobody knows whose values count."""
    return (
        f"switch_ema.trial was called in {len(processes)} of its processes (numbers "
        f"{listed(map(str, processes))}), and whose values count is not known; call it "
        f"in one, and start others without {TRIAL} in their environment"
    )


def _read_rows(path: Path) -> list[dict[str, Any]]:
    """Read the whole lines of a script's values; a killed one may leave half of one."""
    lines = path.read_bytes().split(b"\n")[:-1]
    return [json.loads(line) for line in lines]


def _result_of(rows: list[dict[str, Any]]) -> CellResult:
    if not rows:
        return CellResult(
            "failed",
            "the script never called switch_ema.trial(model, optimizer), or has not "
            "trained with the trainer of switch_ema.trial(trainer)",
        )
    # A launcher may have started the script anew, as torchrun's --max-restarts does.
    begun = max(index for index, row in enumerate(rows) if "options" in row)
    header, *rows = rows[begun:]
    if not rows:
        return CellResult(
            "failed", "the script never called trial.evaluate, so it has no value"
        )
    waiting = header[NOTES].get(WAITING)
    if waiting and not rows[-1]["epoch"]:
        return CellResult("failed", _never_ended(waiting))
    notes: dict[str, Any] = rows[-1].pop(NOTES)
    if header[NOTES].get(COUNTING) and not notes.get(COUNTING):
        return CellResult(
            "failed",
            "the script never called trial.update, which counts the steps of a trial "
            "without an optimizer; call it after each step, or give it the optimizer",
        )
    result = CellResult(
        trained=header[NOTES]["trained"],
        options=header["options"],
        train_seconds=notes["train_seconds"],
        evaluate_seconds=notes["evaluate_seconds"],
        memory_mb=notes["memory_mb"],
    )
    for label in header["options"]:
        own = result.values.setdefault(label, {})
        for row in rows:
            for metric, value in row[label].items():
                own.setdefault(metric, []).append([value])
    return result
