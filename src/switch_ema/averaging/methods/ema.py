"""Exponential moving average (Polyak and Juditsky, 1992)."""

import torch
from torch import nn

from switch_ema._checks import check_count
from switch_ema.averaging.averager import Averager
from switch_ema.averaging.model.slots import Filter
from switch_ema.averaging.schedules.decay import DecayLike, as_schedule, count_warmup
from switch_ema.averaging.shadow.storage import Buffers
from switch_ema.averaging.step.blocks import StepAverage
from switch_ema.averaging.step.hooks import Optimizers

DEFAULT_DECAY = count_warmup(0.999)
"""Warmed up by count, because early switches without warm-up hurt."""


class EMA(Averager):
    """Average exponentially: ``shadow = d * shadow + (1 - d) * live`` at every step.

    Args:
        model: see :class:`Averager`, which also says more about the options from
            ``buffers`` on.
        optimizer: see :class:`Averager`.
        decay: the weight ``d`` of the old shadow, in [0, 1): a number is that
            constant; or a schedule of :mod:`switch_ema.averaging.schedules.decay`, or a
            callable of the step (0 is the first).
        update_every: average only every k-th step, with ``d ** k``.
        buffers: "average" or "copy" floating-point buffers.
        dtype: the dtype of averaged parameters; None: the model's, at least float32.
        device: the device of the shadow; None: beside the model.
        include: names, globs or a predicate: average only these tensors.
        exclude: names, globs or a predicate: do not average these tensors.
        flat: move the model into one block of memory, for the fastest update.
        steps_per_epoch: the length of an epoch, if it must be known during the first.

    >>> model = nn.Linear(1, 1, bias=False)
    >>> ema = EMA(model, decay=0.9)
    >>> _ = model.weight.data.add_(1.0)  # what an optimizer would do
    >>> ema.update()
    >>> shadow, live = ema.averaged_state_dict(), ema.live_state_dict()
    >>> round((live["weight"] - shadow["weight"]).item(), 4)
    0.9
    """

    name = "ema"

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizers = None,
        *,
        decay: DecayLike = DEFAULT_DECAY,
        update_every: int = 1,
        buffers: Buffers = "average",
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        include: Filter = None,
        exclude: Filter = None,
        flat: bool = False,
        steps_per_epoch: int | None = None,
    ) -> None:
        self._decay = as_schedule(decay)
        self._update_every = check_count("update_every", update_every)
        self._in_step: StepAverage | None = None
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
        )
        if self._hook is not None:
            self._hook.offer(self._next_average)

    @property
    def current_decay(self) -> float:
        """The decay of the latest step, or of the first before there was one."""
        counters = self._counters
        return self._decay(max(counters.steps - 1, 0), counters.steps_per_epoch)

    def _after_step(self) -> None:
        if self.steps % self._update_every == 0:
            weight = 1 - self.current_decay**self._update_every
            is_done = self._in_step is not None and self._in_step.is_finished
            self._shadow.average_(weight, self.steps, in_step=is_done)
        self._in_step = None

    def _next_average(self) -> StepAverage | None:
        """Say what the coming step is to average, if the optimizer can do that."""
        self._in_step = None
        if (self.steps + 1) % self._update_every == 0:
            counters = self._counters
            decay = self._decay(counters.steps, counters.steps_per_epoch)
            weight = 1 - decay**self._update_every
            pairs = self._shadow.pairs_in_step()
            self._in_step = StepAverage(weight, pairs) if pairs else None
        return self._in_step
