"""Stochastic weight averaging (Izmailov et al., 2018)."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from switch_ema._checks import check_count, check_positive
from switch_ema.averaging.averager import Averager
from switch_ema.averaging.model.slots import Filter
from switch_ema.averaging.schedules.decay import merged_weight
from switch_ema.averaging.schedules.intervals import ScheduleLike, as_schedule
from switch_ema.averaging.shadow.state import StateMismatch
from switch_ema.averaging.shadow.storage import Buffers
from switch_ema.averaging.step.hooks import Optimizers
from switch_ema.averaging.step.rounds import Count


class SWA(Averager):
    """Average equally: the mean of the live weights at fixed intervals after a start.

    Until the first of them the live model is the average, so a run that ends early
    keeps its trained weights.

    Args:
        model: see :class:`Averager`.
        optimizer: see :class:`Averager`.
        start: averaging starts after this, in the unit of ``every``.
        every: epochs between the weights averaged, ``Steps(n)``, or a callable of the
            number of finished epochs.
        buffers: average "statistics", or "average" or "copy" all float buffers.
        dtype: the dtype of averaged parameters; None: the model's, at least float32.
        device: the device of the shadow; None: the model's.
        include: names, globs or a predicate: average only these tensors.
        exclude: names, globs or a predicate: do not average these tensors.
        flat: move the model into one block of memory for the fastest update.
        steps_per_epoch: steps per epoch, if needed before the first epoch ends.
        count: which steps count if there are several optimizers.

    >>> model = nn.Linear(1, 1)
    >>> swa = SWA(model, start=1)
    >>> [swa.end_epoch() for _ in range(3)], swa.averaged_models
    ([False, False, False], 2)
    """

    name = "swa"
    display_name = "SWA"
    colour = 3
    needs_steps = False

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizers = None,
        *,
        start: float = 0,
        every: ScheduleLike = 1,
        buffers: Buffers = "statistics",
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        include: Filter = None,
        exclude: Filter = None,
        flat: bool = False,
        steps_per_epoch: int | None = None,
        count: Count = "round",
    ) -> None:
        self._every = as_schedule(every, name="every", start=start)
        self._count = 0
        super().__init__(
            model,
            optimizer,
            buffers=buffers,
            dtype=dtype,
            device=device,
            include=include,
            exclude=exclude,
            flat=flat,
            steps_per_epoch=steps_per_epoch,
            count=count,
        )

    @property
    def averaged_models(self) -> int:
        """Number of sets of weights in the average."""
        return self._count

    @property
    def has_average(self) -> bool:
        """Whether anything has been averaged yet."""
        return self._count > 0

    @property
    def current_decay(self) -> float:
        """The weight of the old average: ``1 - 1/n`` with n sets of weights."""
        return 1 - 1 / max(self._count, 1)

    def _after_step(self) -> None:
        if self._every.due_after_step(self.position):
            self._take()

    def _after_epoch(self) -> bool:
        if self._every.due_after_epoch(self.position):
            self._take()
        return False

    def _take(self) -> None:
        """``shadow += (live - shadow) / n`` for the n-th set of weights."""
        self._count += 1
        if self._count == 1:
            self._shadow.read_()
        else:
            weight = merged_weight(1 / self._count, self._count)
            self._shadow.average_(weight, self.steps)

    def _check_shows_loaded(self, extra: Mapping[str, Any]) -> None:
        if "averaged_models" not in extra:
            raise StateMismatch(
                "load_average() needs averaged_models, the number of sets of weights "
                "in the average, or the average would not be shown."
            )

    def _extra_state(self) -> dict[str, Any]:
        return {"averaged_models": self._count}

    def _check_extra_state(self, state: Mapping[str, Any]) -> None:
        try:
            check_count("averaged_models", state["averaged_models"], least=0)
        except ValueError as error:
            raise StateMismatch(f"{error} Nothing was loaded.") from None

    def _load_extra_state(self, state: Mapping[str, Any]) -> None:
        self._count = int(state["averaged_models"])


def swa_budget(epochs: int, budget: float = 1.25) -> tuple[int, int]:
    """Plan the paper's SWA: train as usual, then average for the rest of the budget.

    Args:
        epochs: epochs of the usual training.
        budget: total epochs as a multiple of ``epochs``, above 1.

    Returns:
        The total epochs, and the ``start`` for :class:`SWA`.

    >>> swa_budget(200)
    (250, 200)
    """
    check_count("epochs", epochs)
    if check_positive("budget", budget) <= 1:
        raise ValueError(f"budget must be above 1, got {budget!r}.")
    return max(round(epochs * budget), epochs + 1), epochs


class ConstantAfter(LRScheduler):
    """Follow another schedule up to ``start`` epochs, then keep a constant rate.

    SWA averages weights that a constant, rather large learning rate explores.

    Args:
        optimizer: the optimizer to schedule.
        scheduler: the schedule until then; do not step it yourself.
        start: the number of ``step`` calls after which the rate is constant.
        lr: the constant rate, for all groups or one per group.

    >>> optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    >>> cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)
    >>> schedule, rates = ConstantAfter(optimizer, cosine, start=2, lr=0.3), []
    >>> for epoch in range(4):
    ...     optimizer.step()
    ...     schedule.step()
    ...     rates.append(round(schedule.get_last_lr()[0], 3))
    >>> rates
    [0.854, 0.3, 0.3, 0.3]
    """

    def __init__(
        self,
        optimizer: Optimizer,
        scheduler: LRScheduler,
        *,
        start: int,
        lr: float | list[float],
    ) -> None:
        groups = len(optimizer.param_groups)
        rates = lr if isinstance(lr, list) else [lr] * groups
        if len(rates) != groups:
            raise ValueError(f"lr must have one rate per group, {groups}, got {lr}.")
        self._start = check_count("start", start)
        self._rates = [check_positive("lr", rate) for rate in rates]
        self._scheduler = scheduler
        super().__init__(optimizer)

    def get_lr(self) -> list[Any]:
        """Return the rates of the current epoch."""
        if self.last_epoch >= self._start:
            return self._rates
        if self.last_epoch > 0:
            self._scheduler.step()
        return list(self._scheduler.get_last_lr())

    def state_dict(self) -> dict[str, Any]:
        """Return the position in both schedules."""
        return {
            "last_epoch": self.last_epoch,
            "last_lr": self.get_last_lr(),
            "scheduler": self._scheduler.state_dict(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what ``state_dict`` returned."""
        self.last_epoch = state_dict["last_epoch"]
        self._last_lr = state_dict["last_lr"]
        self._scheduler.load_state_dict(state_dict["scheduler"])
