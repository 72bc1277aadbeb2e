"""``switch_ema.trial``: lets a comparison measure methods in the user's script.

``switch-ema compare --script`` starts the command once for each seed and group of
methods. An environment variable gives the methods and the file for their values.
Started any other way, the trial does nothing and imports nothing from the bench.
"""

import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import torch
import torch.distributed as dist
from torch import nn

from switch_ema._random import random_numbers_kept

if TYPE_CHECKING:
    from switch_ema.averaging.averager import Averager
    from switch_ema.averaging.step.hooks import Optimizers

TRIAL = "SWITCH_EMA_TRIAL"
"""Environment variable with the trial's settings for a script, as JSON."""
NOTES = "trial"
"""Key in a line of values for everything that is not a metric."""
WAITING = "waits_for_epochs"
"""Note in the first line: methods that act at the ends of epochs."""
COUNTING = "counts_updates"
"""Note in the first line: whether ``trial.update`` counts the steps; in later lines:
the number of steps so far."""
PROCESS, ATTEMPT = "process", "attempt"
"""Notes in the first line: the process that called trial, and torchrun's restart
count."""
WEIGHTS, IDLE = "weights", "idle"
"""Notes: digests of the live weights, in every line; methods that did not act so far,
in later lines."""
PROCESSOR = "processor_seconds"
"""Note in later lines: processor time of the first rank since the trial began."""
_WATCH_SECONDS = 0.5

Measure = Callable[[], Mapping[str, Any]]
_begun_in: int | None = None
"""Id of the process that started a trial; a forked child inherits its parent's."""


class Trial:
    """Returned by :func:`trial`; outside of a comparison it does nothing."""

    is_active = False
    """Whether ``switch-ema compare --script`` started this script."""

    def end_epoch(self) -> None:
        """End an epoch: Switch EMA switches here."""

    def update(self) -> None:
        """Count one step; only for a trial without an optimizer."""

    def evaluate(self, measure: Measure) -> Mapping[str, Any]:
        """Measure the weights of every method that this process trains.

        Args:
            measure: evaluates the current model and returns numbers by name, with the
                same names each time. Under DDP and FSDP2 every rank calls it, and the
                numbers of rank 0 count.

        Returns:
            The numbers of the first method, which is plain training if it is compared;
            outside of a comparison, those of the current model.
        """
        return measure()


def trial(
    model: Any, optimizer: "Optimizers | None" = None, *, epochs: int | None = None
) -> Trial:
    """Let ``switch-ema compare --script`` compare methods on this training.

    Creates and attaches the averagers that the command names. Started any other way,
    the script gets a trial that does nothing and costs nothing.

    Args:
        model: the model in training, which may be wrapped in DDP or sharded by FSDP2;
            or, without an optimizer, a Trainer of Lightning or Transformers. The trial
            then follows the trainer's epochs, and measures at each of its evaluations.
        optimizer: the optimizer of its parameters, or several. Without one, call
            ``trial.update()`` after each step.
        epochs: length of the whole training; SWA averages the last quarter of it unless
            it has a start.

    Examples:
        >>> model = torch.nn.Linear(2, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> own = trial(model, optimizer)
        >>> own.end_epoch()
        >>> own.evaluate(lambda: {"accuracy": 0.5})
        {'accuracy': 0.5}
    """
    if TRIAL not in os.environ:
        return Trial()
    settings = json.loads(os.environ[TRIAL])
    if optimizer is not None or isinstance(model, nn.Module):
        return _ActiveTrial(settings, model, optimizer, epochs)
    from switch_ema.bench.train.trainers import follow_trainer

    follow_trainer(model, partial(_ActiveTrial, settings))
    return _TrialOfTrainer()


class _TrialOfTrainer(Trial):
    """Leaves everything to the callbacks in the trainer."""

    is_active = True


class _ActiveTrial(Trial):
    """Attaches a cell's averagers and writes their values, one line per evaluation."""

    is_active = True

    def __init__(
        self,
        settings: Mapping[str, Any],
        model: nn.Module,
        optimizer: "Optimizers | None",
        epochs: int | None,
    ) -> None:
        global _begun_in
        if _begun_in == os.getpid():
            raise RuntimeError(
                "switch_ema.trial was called twice; a comparison covers one model per "
                "script."
            )
        _begun_in = os.getpid()
        self._length = epochs
        threading.Thread(
            target=_leave_without, args=(Path(settings["lock"]),), daemon=True
        ).start()
        with random_numbers_kept():  # checking a method's options creates a tiny model
            self._averagers, options, waiting = _attach(
                settings, model, optimizer, epochs
            )
        self._names: list[str] = []
        self._epoch = self._updates = 0
        self._started, self._evaluating = time.perf_counter(), 0.0
        self._used_before = time.process_time()
        self._log = Path(settings["log"])
        # Opened once: a later attempt replaces the file under this name.
        self._file: TextIO | None = None
        if _is_first_rank():
            self._file = open(self._log, "a", encoding="utf-8")  # noqa: SIM115
        self._attached = [a for a in self._averagers.values() if a is not None]
        self._model, self._optimizers = model, _as_list(optimizer)
        self._is_hooked = optimizer is not None
        self._header: dict[str, Any] = {
            NOTES: {
                "trained": _described(model, optimizer),
                WAITING: waiting,
                COUNTING: bool(self._attached) and not self._is_hooked,
                WEIGHTS: self._digest(),
                ATTEMPT: os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"),
            },
            "options": options,
        }
        self._begin()

    def _begin(self) -> None:
        """Write the first line, and refuse to be one of several processes.

        Child processes inherit the environment variable. If two of them write values,
        the comparison refuses all of them.
        """
        self._process = os.getpid()
        self._header[NOTES][PROCESS] = self._process
        self._write(self._header)
        if self._file is None:
            return
        lines = self._log.read_bytes().split(b"\n")[:-1]
        if len(processes_of(map(json.loads, lines))) > 1:
            raise RuntimeError(
                f"switch_ema.trial was called in process {self._process} though "
                "another process of this training had called it; call it in one, and "
                f"start others without {TRIAL} in their environment."
            )

    def _check_process(self) -> None:
        if os.getpid() != self._process:  # a fork that inherited the open file
            self._begin()

    def end_epoch(self) -> None:
        self._check_process()
        self._epoch += 1
        for averager in self._attached:
            averager.end_epoch()

    def update(self) -> None:
        if self._is_hooked:
            raise RuntimeError(
                "trial.update() is for a trial without an optimizer; this one counts "
                "the steps of its optimizer already."
            )
        self._check_process()
        self._updates += 1
        for averager in self._attached:
            averager.update()

    def evaluate(self, measure: Measure) -> Mapping[str, Any]:
        self._check_process()
        started = time.perf_counter()
        values: dict[str, dict[str, float]] = {}
        returned: list[Mapping[str, Any]] = []
        for index, (label, averager) in enumerate(self._averagers.items()):
            # Every method sees the same random numbers, and training continues as if
            # there had been a single evaluation.
            last = index == len(self._averagers) - 1
            with (
                nullcontext() if last else random_numbers_kept(),
                averager.averaged() if averager is not None else nullcontext(),
            ):
                returned.append(measure())
            values[label] = self._checked(returned[-1])
        self._evaluating += time.perf_counter() - started
        training = time.perf_counter() - self._started - self._evaluating
        notes = {
            "train_seconds": training,
            "evaluate_seconds": self._evaluating,
            PROCESSOR: time.process_time() - self._used_before,
            "memory_mb": self._memory_mb(),
            COUNTING: self._updates,
            WEIGHTS: self._digest(),
            IDLE: self._idle(),
        }
        self._write({"epoch": self._epoch, **values, NOTES: notes})
        return returned[0]

    def _digest(self) -> list[str]:
        from switch_ema.bench.train.starts import weight_digests

        return weight_digests(self._model, 1, stacked=False)

    def _idle(self) -> dict[str, str]:
        """Find the methods that have not acted so far, and why."""
        from switch_ema.bench.methods import parse_method
        from switch_ema.bench.train.idle import why_idle

        with random_numbers_kept():
            found = {
                label: why_idle(parse_method(label, {}), averager, self._length or 1)
                for label, averager in self._averagers.items()
            }
        return {label: why for label, why in found.items() if why}

    def _memory_mb(self) -> float:
        """Measure the state of the training; 0 where the optimizer is unknown."""
        from switch_ema.bench.train.memory import state_mb

        if not self._optimizers:
            return 0.0
        return state_mb(self._model, self._optimizers, self._attached)

    def _checked(self, measured: Any) -> dict[str, float]:
        """Return the numbers as floats, if they have the right form and names."""
        if not isinstance(measured, Mapping) or not measured:
            raise TypeError(
                "trial.evaluate needs a function that returns numbers by name, such as "
                f"{{'accuracy': 0.9}}, got {measured!r}."
            )
        names = list(map(str, measured))
        if sorted(names) != sorted(self._names or names):
            raise ValueError(
                f"trial.evaluate must be given the same names each time, got "
                f"{', '.join(self._names)} and then {', '.join(names)}."
            )
        self._names = names
        return {
            str(name): float(v.detach() if isinstance(v, torch.Tensor) else v)
            for name, v in measured.items()
        }

    def _write(self, row: Mapping[str, Any]) -> None:
        if self._file is not None:
            self._file.write(json.dumps(row) + "\n")
            self._file.flush()


def processes_of(rows: Iterable[Mapping[str, Any]]) -> list[int]:
    """List the processes that started a trial in the script's last start.

    A launcher may have restarted the script, as torchrun's --max-restarts does.
    """
    begun = [row[NOTES] for row in rows if "options" in row]
    last = begun[-1].get(ATTEMPT) if begun else None
    return [int(one.get(PROCESS, 0)) for one in begun if one.get(ATTEMPT) == last]


def _attach(
    settings: Mapping[str, Any],
    model: nn.Module,
    optimizer: "Optimizers | None",
    epochs: int | None,
) -> tuple[dict[str, "Averager | None"], dict[str, str], list[str]]:
    """Create the averager of each method.

    Returns:
        The averagers and their described options, by method, and the methods that act
        at the ends of epochs.
    """
    from switch_ema.bench.methods import options_in_epochs, parse_method

    averagers, options, waiting = {}, {}, []
    for index, label in enumerate(settings["methods"]):
        method = parse_method(label, {})
        if (
            epochs is None
            and method.name == "swa"
            and "start" not in method.spec.options
        ):
            raise ValueError(
                f"{label} needs the length of the training: give it a start, as in "
                "swa:start=20, or call switch_ema.trial(..., epochs=...)."
            )
        averagers[label] = method.make(
            model,
            optimizer,
            epochs=epochs or 1,
            folder=Path(f"{settings['log']}.{index}"),
        )
        options[label] = method.describe(epochs or 1)
        if options_in_epochs(method):
            waiting.append(label)
    return averagers, options, waiting


def _described(model: nn.Module, optimizer: "Optimizers | None") -> dict[str, str]:
    from switch_ema.averaging.model.names import unwrap
    from switch_ema.bench.train.description import describe_model, describe_optimizer

    trained = {"Network": describe_model(unwrap(model), 1)}
    if optimizer is not None:
        trained["Optimizer"] = "; ".join(map(describe_optimizer, _as_list(optimizer)))
    return {**trained, "Processes": str(int(os.environ.get("WORLD_SIZE", 1)))}


def _as_list(optimizer: "Optimizers | None") -> list[Any]:
    if optimizer is None:
        return []
    return list(optimizer) if isinstance(optimizer, (list, tuple)) else [optimizer]


def _is_first_rank() -> bool:
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank() == 0
    # No process group yet: torchrun sets the rank in the environment.
    return os.environ.get("RANK", "0") == "0"


def _leave_without(lock: Path) -> None:
    """Exit this process when the comparison that started it is gone.

    The comparison holds a lock, which the system releases however it ends. This also
    stops other ranks, which are not its child processes.
    """
    import fcntl

    with lock.open() as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                os._exit(1)  # not sys.exit(), which would end only this thread
            except BlockingIOError:
                time.sleep(_WATCH_SECONDS)
