"""Runs the user's command as one cell; its script reports values through a trial."""

import errno
import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
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
from switch_ema.bench.train.starts import Starts
from switch_ema.bench.train.trial import (
    COUNTING,
    IDLE,
    NOTES,
    PROCESSOR,
    TRIAL,
    WAITING,
    WEIGHTS,
    processes_of,
)
from switch_ema.bench.train.values import Latest, OnProgress, latest_of

LOGS = "logs"
"""Subfolder of a run with the values and output of its scripts."""
_LAST_LINES = 3
"""Lines of stderr quoted in the message of a failure."""
_SHOWN_LINES = 12
"""Lines of output shown in the terminal after a failure."""

_POLL_SECONDS = 0.2
_ERROR = re.compile(r"^(\[rank\d+\]:\s*)?[\w.]*(Error|Exception|Interrupt|Exit)\b")
_LAUNCHER = "ChildFailedError"
"""Raised by torchrun after a script failed; it does not quote the script's error."""


@dataclass(frozen=True)
class _Files:
    """Files of one cell in the run folder."""

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
    """Run a cell's command to its end; the reported values are the result.

    Always starts from scratch, with an empty folder: a script's own checkpoints do not
    contain the averages.
    """
    if context.sources is not None:
        check_unchanged(cell.task, context.sources, context.inputs)
    check_kernels(context.kernels)
    files = _Files.of(context.folder, cell)
    files.values.parent.mkdir(parents=True, exist_ok=True)
    _wait_for_earlier(files.lock)
    for path in (files.values, files.lock):  # an old process may hold the old files
        path.unlink(missing_ok=True)
    files.values.touch()
    if FOLDER in cell.task:
        shutil.rmtree(files.folder, ignore_errors=True)
        files.folder.mkdir()
    settings = {
        "methods": cell.methods,
        "log": str(files.values.absolute()),
        "lock": str(files.lock.absolute()),
    }
    threads = str(context.threads)
    environment = {
        **os.environ,
        TRIAL: json.dumps(settings),
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


def last_output(folder: Path, cell: Cell) -> tuple[Path, list[str]]:
    """Return a script's file of errors and its last lines; of output if it is empty."""
    files = _Files.of(folder, cell)
    for path in (files.errors, files.output):
        if path.is_file() and (lines := _read_lines(path)):
            return path, lines[-_SHOWN_LINES:]
    return files.errors, []


def with_known_metric(
    result: CellResult, wanted: str | None, known: str | None
) -> CellResult:
    """Refuse a result without the metric of its comparison.

    Args:
        result: result of a script.
        wanted: metric named by the user.
        known: metrics that earlier trainings of the run reported, as JSON.
    """
    if not result.values:
        return result
    by_metric = next(iter(result.values.values()))
    names, before = list(by_metric), json.loads(known or "[]")
    if wanted is not None and wanted not in names:
        why = f"it reports {listed(names)}, but the comparison needs {wanted}"
        return CellResult("failed", why)
    if wanted is None and before and set(before) != set(names):
        why = f"it reports {listed(names)}, but others reported {listed(before)}"
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
    """Run a command, reporting the evaluations of one method as progress.

    However this process ends, the guard ends all processes of the command. It also
    holds the lock until they are gone.
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
            start_new_session=True,  # keeps Ctrl-C from the guard, which must clean up
        )
        os.close(ending)
        reported = 0
        try:
            while True:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_POLL_SECONDS)
                lines = files.values.read_bytes().split(b"\n")[1:-1]
                if len(lines) > reported:
                    reported = len(lines)
                    progress(reported, _latest_of(lines[-1], method))
                if process.returncode is not None:
                    return process.returncode
        finally:
            os.close(ours)  # the guard's signal to end the command
            process.wait()


def _latest_of(line: bytes, method: str) -> Latest | None:
    """Read the first metric of a line; a header of a restarted script has none."""
    metrics = json.loads(line).get(method, {})
    return latest_of({metric: [[value]] for metric, value in metrics.items()})


@contextmanager
def _locked(path: Path) -> Iterator[int]:
    """Hold a lock while this process or the guard lives; trials exit without it."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:  # flock's error does not name the file
            raise OSError(error.errno, error.strerror, str(path)) from None
        yield file.fileno()


def _wait_for_earlier(lock: Path) -> None:
    """Wait for the guard of an earlier, killed attempt to finish.

    Its script could still write to the files of this attempt.
    """
    if lock.is_file():
        with lock.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH)


def _how_it_ended(code: int) -> str:
    return f"ended by signal {-code}" if code < 0 else f"ended with exit code {code}"


def _last_words(files: _Files) -> str:
    """Return the last lines of stderr, up to the one with the error."""
    lines = [line.strip() for line in _read_lines(files.errors)]
    found = [
        index
        for index, line in enumerate(lines)
        if _ERROR.match(line) and _LAUNCHER not in line
    ]
    end = found[-1] + 1 if found else len(lines)
    words = " | ".join(lines[max(0, end - _LAST_LINES) : end])
    return f"{words or 'its error output is empty'} (all of it: {files.errors})"


def _read_lines(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8", errors="replace")
    return [line.rstrip() for line in text.splitlines() if line.strip()]


def _never_ended(methods: Sequence[str]) -> str:
    name = method_of(methods[0]).spec.name
    option = options_in_epochs(method_of(methods[0]))[0]
    return (
        f"the script never called trial.end_epoch, needed by {listed(methods)}; call "
        f"it after each epoch, or count in steps, as in {name}:{option}=100it"
    )


def _several(processes: Sequence[int]) -> str:
    """Explain that several processes called trial."""
    return (
        f"switch_ema.trial was called in {len(processes)} of its processes (ids "
        f"{listed(map(str, processes))}), so it is unclear whose values count; call it "
        f"in one, and start the others without {TRIAL} in their environment"
    )


def _processor_seconds(header: Mapping[str, Any], notes: Mapping[str, Any]) -> float:
    """Count all processes of a distributed training like the first; 0 if unknown."""
    processes = int(header[NOTES]["trained"].get("Processes", 1))
    return float(notes.get(PROCESSOR, 0.0)) * processes


def _read_rows(path: Path) -> list[dict[str, Any]]:
    """Read the complete lines of a script's values; a kill may leave a partial one."""
    lines = path.read_bytes().split(b"\n")[:-1]
    return [json.loads(line) for line in lines]


def _result_of(rows: list[dict[str, Any]]) -> CellResult:
    if not rows:
        return CellResult(
            "failed",
            "the script never called switch_ema.trial(model, optimizer), or never "
            "trained with the trainer given to switch_ema.trial(trainer)",
        )
    # A launcher may have restarted the script, as torchrun's --max-restarts does.
    begun = max(index for index, row in enumerate(rows) if "options" in row)
    header, *rows = rows[begun:]
    if not rows:
        return CellResult(
            "failed", "the script never called trial.evaluate, so it has no values"
        )
    waiting = header[NOTES].get(WAITING)
    if waiting and not rows[-1]["epoch"]:
        return CellResult("failed", _never_ended(waiting))
    notes: dict[str, Any] = rows[-1].pop(NOTES)
    if header[NOTES].get(COUNTING) and not notes.get(COUNTING):
        return CellResult(
            "failed",
            "the script never called trial.update, which counts the steps of a trial "
            "without an optimizer; call it after each step, or give the trial the "
            "optimizer",
        )
    result = CellResult(
        trained=header[NOTES]["trained"],
        options=header["options"],
        train_seconds=notes["train_seconds"],
        evaluate_seconds=notes["evaluate_seconds"],
        processor_seconds=_processor_seconds(header, notes),
        memory_mb=notes["memory_mb"],
        # A trial of 0.2.0 writes none of these.
        starts=Starts(header[NOTES].get(WEIGHTS, []), end=notes.get(WEIGHTS, [])),
        idle=notes.get(IDLE, {}),
    )
    for label in header["options"]:
        own = result.values.setdefault(label, {})
        for row in rows:
            for metric, value in row[label].items():
                own.setdefault(metric, []).append([value])
    return result
