"""Periodic stochastic weight averaging (Guo et al., 2022)."""

import torch
from torch import nn

from switch_ema.averaging.methods.swa import SWA
from switch_ema.averaging.model.slots import Filter
from switch_ema.averaging.schedules.intervals import ScheduleLike, as_schedule
from switch_ema.averaging.shadow.storage import Buffers
from switch_ema.averaging.step.hooks import (
    Optimizers,
    OptimizerState,
    check_optimizer_state,
)
from switch_ema.averaging.step.rounds import Count


class PSWA(SWA):
    """Average equally within a period; continue training from the mean at its end.

    Each period starts a new mean. Until that has its first weights, ``averaged()``
    shows the last period's mean.

    Args:
        model: see :class:`Averager`.
        optimizer: see :class:`Averager`.
        period: epochs, ``Steps(n)`` or a callable: when to write the mean back.
        every: epochs, ``Steps(n)`` or a callable: when to add weights to the mean.
        start: averaging starts after this, in the unit of ``every``.
        optimizer_state: "keep" or "reset" the optimizer's moments at a write-back.
        buffers: average "statistics", or "average" or "copy" all float buffers.
        dtype: the dtype of averaged parameters; None: the model's, at least float32.
        device: the device of the shadow; None: the model's.
        include: names, globs or a predicate: average only these tensors.
        exclude: names, globs or a predicate: do not average these tensors.
        flat: move the model into one block of memory for the fastest update.
        steps_per_epoch: steps per epoch, if needed before the first epoch ends.
        count: which steps count if there are several optimizers.

    >>> pswa = PSWA(nn.Linear(1, 1), period=2)
    >>> [pswa.end_epoch() for _ in range(4)]
    [False, True, False, True]
    """

    name = "pswa"
    display_name = "PSWA"
    colour = 6
    active = True

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizers = None,
        *,
        period: ScheduleLike = 5,
        every: ScheduleLike = 1,
        start: float = 0,
        optimizer_state: OptimizerState = "keep",
        buffers: Buffers = "statistics",
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        include: Filter = None,
        exclude: Filter = None,
        flat: bool = False,
        steps_per_epoch: int | None = None,
        count: Count = "round",
    ) -> None:
        self._period = as_schedule(period, name="period")
        self._resets = check_optimizer_state(optimizer_state, optimizer)
        super().__init__(
            model,
            optimizer,
            start=start,
            every=every,
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
    def has_average(self) -> bool:
        """Whether anything has been averaged, in this period or before."""
        return self._count > 0 or self.switches > 0

    def _after_step(self) -> None:
        super()._after_step()
        if self._period.due_after_step(self.position):
            self._write_back()

    def _after_epoch(self) -> bool:
        super()._after_epoch()
        return self._period.due_after_epoch(self.position) and self._write_back()

    def _write_back(self) -> bool:
        if self._count == 0:
            return False
        self._write_live(reset_optimizer=self._resets)
        self._count = 0
        return True
