"""Exponential moving average (Polyak and Juditsky, 1992)."""

import warnings
from typing import Any

import torch
from torch import nn

from switch_ema.averaging.methods.late_start import LateStart
from switch_ema.averaging.model.slots import Filter
from switch_ema.averaging.schedules.decay import DecaySchedule, merged_weight
from switch_ema.averaging.schedules.spelling import AUTO, DecayLike, as_schedule
from switch_ema.averaging.schedules.start import StartLike
from switch_ema.averaging.schedules.windows import fraction
from switch_ema.averaging.shadow.storage import Buffers
from switch_ema.averaging.step.blocks import StepAverage
from switch_ema.averaging.step.hooks import Optimizers
from switch_ema.averaging.step.rate_jumps import RateJumps, largest_rate
from switch_ema.averaging.step.rounds import Count


class EMA(LateStart):
    """Average exponentially: ``shadow = d * shadow + (1 - d) * live`` at every step.

    Where ``1 - d`` is below 8e-5, several updates are merged into one, which rounding
    cannot discard (see docs/long-runs.md).

    Args:
        model: see :class:`Averager`, which describes the options from ``buffers`` on
            in full.
        optimizer: see :class:`Averager`.
        decay: the weight ``d`` of the old shadow, in [0, 1). "auto", the default, is
            ``fraction(0.1)``: a weight's share halves within a tenth of the steps so
            far, which needs no knowledge of the run. A number is warmed up by count,
            ``min(d, (1 + n) / (10 + n))`` at step n; ``constant(d)`` is not. Other
            schedules are ``half_life``, ``power``, ``cosine`` and the warm-ups, also
            as strings such as "half_life(500it)"; a callable receives the step (0 is
            the first).
        update_every: average only every k-th step, with ``d ** k``.
        start: where the average begins, as a number of epochs, ``Steps(n)``, or text:
            "5ep", "1000it", "10% of 90ep"; in trainers that know their length also
            "10%". Before, the average is the live model; the decay counts from there.
        buffers: average "statistics", or "average" or "copy" all float buffers.
        dtype: the dtype of averaged parameters; None: the model's, at least float32.
        device: the device of the shadow; None: the model's.
        include: names, globs or a predicate: average only these tensors.
        exclude: names, globs or a predicate: do not average these tensors.
        flat: move the model into one block of memory for the fastest update.
        steps_per_epoch: steps per epoch, if needed before the first epoch ends.
        count: which steps count if there are several optimizers.

    >>> from switch_ema.averaging.schedules.decay import constant
    >>> model = nn.Linear(1, 1, bias=False)
    >>> ema = EMA(model, decay=constant(0.9))
    >>> _ = model.weight.data.add_(1.0)  # what an optimizer would do
    >>> ema.update()
    >>> shadow, live = ema.averaged_state_dict(), ema.live_state_dict()
    >>> round((live["weight"] - shadow["weight"]).item(), 4)
    0.9
    """

    name = "ema"
    display_name = "EMA"
    colour = 1

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizers = None,
        *,
        decay: DecayLike = AUTO,
        update_every: int = 1,
        start: StartLike = 0,
        buffers: Buffers = "statistics",
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        include: Filter = None,
        exclude: Filter = None,
        flat: bool = False,
        steps_per_epoch: int | None = None,
        count: Count = "round",
    ) -> None:
        self._decay = as_schedule(decay, auto=self._auto_decay())
        self._set_start(start, update_every)
        self._in_step: StepAverage | None = None
        self._rate_jumps: RateJumps | None = RateJumps()
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

    def _check_use(self) -> None:
        super()._check_use()
        self._warn_of_rate_jump()

    def _after_epoch(self) -> bool:
        self._warn_of_rate_jump()
        return super()._after_epoch()

    def _warn_of_rate_jump(self) -> None:
        """Warn once if the learning rate has jumped; not for switched averages."""
        is_watched = self.has_average and not self.active
        if self._rate_jumps is None or self._hook is None or not is_watched:
            return
        rate = largest_rate(self._hook.optimizers)
        warning = self._rate_jumps.look(self.steps, rate, self.current_decay)
        if warning is not None:
            self._rate_jumps = None
            warnings.warn(warning, stacklevel=5)

    def _auto_decay(self) -> DecaySchedule:
        """Return the schedule of ``decay="auto"``."""
        return fraction()

    def _connect(self, optimizers: list[Any]) -> None:
        super()._connect(optimizers)
        if self._hook is not None:
            self._hook.offer(self._next_average)

    def _configured(self) -> dict[str, Any]:
        return {"decay": self._decay} | super()._configured()

    @property
    def current_decay(self) -> float:
        """The decay ``d`` of the latest step; before any step, that of the first.

        0 as long as the average has not begun (``start``).
        With ``update_every=k`` the weight of the old shadow is ``d ** k``.
        """
        if self._began is None:
            return 0.0
        counters = self._counters
        n = max(counters.steps - self._first, 0)
        return self._decay(n, counters.steps_per_epoch)

    def _after_step(self) -> None:
        step = self._counters.steps
        if step % self._update_every == 0:
            weight = self._weight_at(step)
            is_done = self._in_step is not None and self._in_step.is_finished
            self._shadow.average_(weight, step, is_done)
        elif self._began is None:
            self._begin_if_reached()
        self._in_step = None

    def _kept_share(self, since: int) -> float:
        """Return the share of a constant drift since a step that the shadow followed.

        If the live weights move by the same amount at each of K steps, the shadow
        moves by this share of the total: about ``1 - (1 - e**-x) / x`` with
        ``x = (1 - d) * K`` for a constant decay.
        """
        moved = 0.0
        for step in range(since + 1, self.steps + 1):
            if step % self._update_every == 0:
                moved += self._weight_at(step) * (step - since - moved)
        return moved / (self.steps - since)

    def _weight_at(self, step: int) -> float:
        """Return the weight of the live tensors at a step that averages."""
        decay = self._decay(step - self._first, self._counters.steps_per_epoch)
        every = self._update_every
        return merged_weight(1 - decay**every, step // every)

    def _next_average(self) -> StepAverage | None:
        """Return the average for the coming step, if the optimizer can compute it."""
        self._in_step = None
        if (self.steps + 1) % self._update_every == 0:
            weight = self._weight_at(self.steps + 1)
            pairs = self._shadow.pairs_in_step() if weight else {}
            self._in_step = StepAverage(weight, pairs) if pairs else None
        return self._in_step
