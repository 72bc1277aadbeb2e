"""Time and memory of a training step, measured side by side."""

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from switch_ema.bench.loading import create_task
from switch_ema.bench.methods import parse_method
from switch_ema.bench.optimizers.step import take_step
from switch_ema.bench.plan.task_snapshot import facts_of
from switch_ema.bench.train.memory import storages, tensors_in
from switch_ema.bench.train.task_checks import make_optimizer

ROUNDS, STEPS = 30, 10


@dataclass(frozen=True)
class Contestant:
    """One method with one optimizer."""

    name: str
    optimizer: str | None
    """None: the task's own."""
    method: str


@dataclass(frozen=True)
class StepCost:
    """Cost of one step."""

    seconds: float
    """Median over rounds."""
    bytes: int
    """Peak size of tensors held while the loss is computed: weights, optimizer state,
    averages and copies, without activations."""
    weights: int
    """Of the model alone."""


def measure_steps(
    task: str,
    contestants: Sequence[Contestant],
    *,
    rounds: int = ROUNDS,
    steps: int = STEPS,
) -> dict[str, StepCost]:
    """Measure a step of each contestant, interleaved so that all share the noise.

    Args:
        task: name with options; its first batches are used.
        contestants: what to compare.
        rounds: turns of each contestant, after one uncounted warm-up.
        steps: steps per turn.
    """
    with TemporaryDirectory(prefix="switch-ema-") as folder:
        trained = [_Steps(task, one, Path(folder)) for one in contestants]
        seconds: list[list[float]] = [[] for _ in trained]
        for number in range(rounds + 1):
            for place, one in enumerate(trained):
                took = one.take(steps)
                if number:
                    seconds[place].append(took / steps)
        return {
            one.name: StepCost(median(own), one.held, one.weights)
            for one, own in zip(trained, seconds, strict=True)
        }


@dataclass
class _Steps:
    """A model in training."""

    task_name: str
    contestant: Contestant
    folder: Path
    held: int = 0
    weights: int = 0
    name: str = field(init=False)

    def __post_init__(self) -> None:
        self.name = self.contestant.name
        torch.manual_seed(0)
        self._task = create_task(self.task_name, (0,))
        self._model = self._task.model().train()
        self._optimizer = make_optimizer(
            self._task, self._model, self.contestant.optimizer, None
        )
        recipe = facts_of(self.task_name).recipe
        method = parse_method(self.contestant.method, recipe.methods)
        self._averager = method.make(
            self._model, self._optimizer, epochs=recipe.epochs, folder=self.folder
        )
        self._batches = list(self._task.train_loader(0))
        self._next = 0
        self.weights = sum(size for _, size in storages(self._model.parameters()))
        self._measure_memory()

    def _measure_memory(self) -> None:
        """Take two steps; the first creates the optimizer's state."""
        self.take(1)
        # Holding these prevents the reuse of their addresses.
        before, state = _held_tensors(), self._state()
        others = storages(before)
        own = storages(state) - storages(self._model.parameters())
        copies: list[int] = []

        def noticed() -> None:
            found = storages(_held_tensors()) - others - own
            copies.append(sum(size for _, size in found))

        self.take(1, noticed)
        self.held = self.weights + sum(size for _, size in own) + max(copies)

    def _state(self) -> list[Tensor]:
        """Return the tensors of the optimizer's state and of the average."""
        found: list[Any] = [self._optimizer.state_dict()]
        if self._averager is not None:
            found.append(self._averager.state_dict())
        return tensors_in(found)

    def take(self, steps: int, noticed: Callable[[], None] = lambda: None) -> float:
        """Take some steps and return the seconds."""
        started = time.perf_counter()
        for _ in range(steps):
            batch = self._batches[self._next % len(self._batches)]
            self._next += 1

            def gradients(batch: Any = batch) -> Tensor:
                noticed()
                loss = self._task.loss(self._model, batch)
                loss.backward()  # type: ignore[no-untyped-call]
                return loss

            take_step(self._optimizer, self._model, gradients)
        return time.perf_counter() - started


def _held_tensors() -> list[Tensor]:
    """Find all tensors that are known to the garbage collector."""
    kinds = (Tensor, nn.Parameter)
    return [one for one in gc.get_objects() if type(one) in kinds]
