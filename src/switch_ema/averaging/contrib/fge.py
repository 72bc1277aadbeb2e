"""Fast geometric ensembling (Garipov et al., 2018): cycles, and averaged predictions.

:class:`LAWA` takes a snapshot in the middle of each cycle of the learning rate, where
it is lowest; the *predictions* of the snapshots are averaged, not their weights.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from switch_ema._checks import check_count, check_positive
from switch_ema.averaging.schedules.intervals import Schedule
from switch_ema.averaging.schedules.progress import Position


@dataclass(frozen=True)
class MidCycle(Schedule):
    """In the middle of each cycle of ``steps`` optimizer steps, an even number.

    >>> MidCycle(10).due_after_step(Position(25, 0, 25, None))
    True
    """

    steps: int
    """Optimizer steps per cycle, an even number."""

    def __post_init__(self) -> None:
        if check_count("steps", self.steps, 2) % 2:
            raise ValueError(f"steps must be an even number, got {self.steps}.")

    def due_after_step(self, position: Position) -> bool:
        """Whether the step is in the middle of a cycle."""
        return position.steps % self.steps == self.steps // 2

    def progress(self, position: Position) -> float:
        """Return the steps so far."""
        return position.steps

    def steps_between(self, steps_per_epoch: int | None) -> float | None:
        """Return the length of a cycle."""
        return self.steps


class CyclicRate(LRScheduler):
    """Lower and raise the learning rate linearly, once per cycle.

    At the i-th step, with ``t = ((i - 1) mod c + 1) / c``, the rate is ``(1 - 2t) *
    high + 2t * low`` in the first half and ``(2 - 2t) * low + (2t - 1) * high`` in the
    second. Call ``step()`` after each step of the optimizer.

    Args:
        optimizer: the optimizer to schedule.
        steps: ``c``, the length of a cycle, an even number.
        high: the rate at the end of a cycle.
        low: the rate in its middle.

    >>> optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    >>> schedule, rates = CyclicRate(optimizer, steps=4, high=1.0, low=0.2), []
    >>> for _ in range(5):
    ...     rates.append(round(optimizer.param_groups[0]["lr"], 2))
    ...     optimizer.step()
    ...     schedule.step()
    >>> rates
    [0.6, 0.2, 0.6, 1.0, 0.6]
    """

    def __init__(
        self, optimizer: Optimizer, *, steps: int, high: float, low: float
    ) -> None:
        self._cycle = MidCycle(steps).steps
        self._high, self._low = check_positive("high", high), check_positive("low", low)
        super().__init__(optimizer)

    def get_lr(self) -> list[Any]:
        """Return the rate of the next step for each group."""
        t = (self.last_epoch % self._cycle + 1) / self._cycle
        if t <= 0.5:
            rate = (1 - 2 * t) * self._high + 2 * t * self._low
        else:
            rate = (2 - 2 * t) * self._low + (2 * t - 1) * self._high
        return [rate] * len(self.optimizer.param_groups)


def average_predictions(
    members: Iterable[nn.Module], call: Callable[[nn.Module], Tensor]
) -> Tensor:
    """Average the predictions of an ensemble.

    Args:
        members: an iterable of models, such as ``LAWA.members()`` or
            ``SWAG.samples(30)``.
        call: ``call(model)`` returns its predictions: probabilities, not logits.
    """
    total, count = None, 0
    with torch.no_grad():
        for model in members:
            found = call(model).detach()
            total = found.clone() if total is None else total.add_(found)
            count += 1
    if total is None:
        raise ValueError("members must be at least one model, got none.")
    return total / count
