"""Exponential moving average (Polyak and Juditsky, 1992)."""

from typing import TYPE_CHECKING

from torch import nn

from switch_ema._checks import check_count
from switch_ema.averaging.averager import Averager
from switch_ema.averaging.schedules.decay import DecayLike, as_schedule, count_warmup
from switch_ema.averaging.shadow.storage import AveragerOptions
from switch_ema.averaging.step.blocks import StepAverage
from switch_ema.averaging.step.hooks import Optimizers

if TYPE_CHECKING:
    from typing_extensions import Unpack

DEFAULT_DECAY = count_warmup(0.999)
"""Warmed up by count, because early switches without warm-up hurt."""


class EMAOptions(AveragerOptions, total=False):
    """The options that methods built on an EMA take as well."""

    decay: DecayLike
    update_every: int


class EMA(Averager):
    """Average exponentially: ``shadow = d * shadow + (1 - d) * live`` at every step.

    Args:
        model: see :class:`Averager`, as for all further arguments.
        optimizer: see :class:`Averager`.
        decay: the weight ``d`` of the old shadow, in [0, 1): a number is that
            constant; or a schedule of :mod:`switch_ema.averaging.schedules.decay`, or a
            callable of the step (0 is the first).
        update_every: average only every k-th step, with ``d ** k``.
        options: the options of :class:`Averager`.

    >>> import torch
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
        **options: "Unpack[AveragerOptions]",
    ) -> None:
        self._decay = as_schedule(decay)
        self._update_every = check_count("update_every", update_every)
        self._in_step: StepAverage | None = None
        super().__init__(model, optimizer, **options)
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
            pairs = self._shadow.by_memory()
            self._in_step = StepAverage(weight, pairs) if pairs else None
        return self._in_step
