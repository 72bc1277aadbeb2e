"""Equation 3 of the Switch EMA paper, taken literally; for study, not for use."""

from typing import Any

import torch
from torch import nn

from switch_ema.averaging.averager import Averager
from switch_ema.averaging.model.slots import Filter
from switch_ema.averaging.schedules.decay import constant
from switch_ema.averaging.schedules.intervals import Steps
from switch_ema.averaging.schedules.spelling import DecayLike, as_schedule
from switch_ema.averaging.shadow.storage import Buffers
from switch_ema.averaging.step.hooks import Optimizers
from switch_ema.averaging.step.rounds import Count

DEFAULT_DECAY = constant(0.9)
"""Equation 3 has a constant; a warm-up would change its first steps."""
DEFAULT_EVERY = Steps(100)


class LiteralEq3(Averager):
    """Average at every step into the live weights, except at every T-th step.

    With ``new`` the optimizer's iterate from the weights ``old``:
    ``live = new`` if the step is a multiple of T, else ``d * old + (1 - d) * new``.
    SGD then has its learning rate times ``1 - d``, with a full step every T steps; with
    the decays of the paper's tables, training almost stops. Live weights and shadow are
    equal after each step.

    Args:
        model: see :class:`Averager`.
        optimizer: see :class:`Averager`.
        decay: the weight ``d`` of the old weights in [0, 1), as for :class:`EMA`.
        every: T as ``Steps(n)``; epochs are not possible, since each step is averaged
            or not.
        buffers: average "statistics", or "average" or "copy" all float buffers.
        dtype: the dtype of averaged parameters; None: the model's, at least float32.
        device: the device of the shadow; None: the model's.
        include: names, globs or a predicate: average only these tensors.
        exclude: names, globs or a predicate: do not average these tensors.
        flat: move the model into one block of memory for the fastest update.
        steps_per_epoch: steps per epoch, if needed before the first epoch ends.
        count: which steps count if there are several optimizers.
    """

    name = "literal-eq3"
    display_name = "Eq. 3, literal"
    colour = 8
    active = True

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizers = None,
        *,
        decay: DecayLike = DEFAULT_DECAY,
        every: Steps = DEFAULT_EVERY,
        buffers: Buffers = "copy",
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        include: Filter = None,
        exclude: Filter = None,
        flat: bool = False,
        steps_per_epoch: int | None = None,
        count: Count = "round",
    ) -> None:
        self._decay = as_schedule(decay)
        if not isinstance(every, Steps):
            raise ValueError(
                f"every must be Steps(n), such as Steps(4), got {every!r}."
            )
        self._every = every
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

    def _configured(self) -> dict[str, Any]:
        return {"decay": self._decay}

    @property
    def current_decay(self) -> float:
        """The decay of the latest step; before any step, that of the first."""
        counters = self._counters
        return self._decay(max(counters.steps - 1, 0), counters.steps_per_epoch)

    def _after_step(self) -> None:
        if self._every.due_after_step(self.position):
            self._shadow.read_()
        else:
            self._shadow.average_(1 - self.current_decay, self.steps)
            self._write_live()
