"""Switch EMA: training continues from the average (Li et al., 2024)."""

import math
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from switch_ema._checks import check_range
from switch_ema.averaging.methods.adaptive import KEY, AdaptiveSwitching
from switch_ema.averaging.methods.ema import EMA
from switch_ema.averaging.model.slots import Filter, Slot
from switch_ema.averaging.schedules.adaptive import Adaptive
from switch_ema.averaging.schedules.auto import SwitchAuto, surviving_share
from switch_ema.averaging.schedules.intervals import (
    ScheduleLike,
    Window,
    as_schedule,
)
from switch_ema.averaging.schedules.spelling import AUTO, DecayLike
from switch_ema.averaging.shadow.state import load_shadow_state
from switch_ema.averaging.shadow.storage import Buffers
from switch_ema.averaging.step.hooks import (
    Optimizers,
    OptimizerState,
    check_optimizer_state,
)
from switch_ema.averaging.step.rounds import Count

DEFAULT_DECAY = 0.999
LEAST_KEPT = 0.1
"""A switch that keeps less of the progress since the last switch warns."""
_LEAST_LAG = 8
"""Steps a switch must go back for the next step to show whether it was undone."""

_MANY_STEPS = 10_000
"""Steps without an epoch after which a schedule that counts epochs warns."""

_UNDONE = (
    "The step after the last switch continued from the weights before it, which undid "
    "the switch: the optimizer keeps float32 copies of the weights and writes them "
    "into the model. Average the copies: pass an nn.ParameterList of them to the "
    "averager instead of the model, with the optimizer."
)


class SwitchEMA(EMA):
    """Average exponentially; at the end of every T epochs continue from the average.

    After each step ``shadow = d * shadow + (1 - d) * live``; after every T epochs
    ``live = shadow``, and the shadow keeps its value. This follows the text and
    Algorithm 1 of the paper; docs/fidelity.md compares other readings.

    Args:
        model: see :class:`Averager`.
        optimizer: see :class:`Averager`.
        decay: the weight ``d`` of the old shadow, as for :class:`EMA`, but "auto" is
            ``1 - 5 / n`` with n steps between two switches, which keeps 80% of the
            progress; the first epoch shows how long an epoch is. It needs n > 5.
        update_every: average only every k-th step, with ``d ** k``.
        switch_every: T in epochs (0.5 is twice per epoch), ``Steps(n)``, text such as
            "100it" (steps) or "2ep", a callable of the number of finished epochs that
            returns whether to switch, or the experimental ``contrib.Adaptive(probe)``.
        switch_start: switching starts after this, in the unit of ``switch_every``.
        switch_stop: switching stops after this.
        live_share: ``b`` in [0, 1) for ``live = b * live + (1 - b) * shadow``.
        optimizer_state: "keep" or "reset" the optimizer's moments at a switch.
        buffers: average "statistics", or "average" or "copy" all float buffers.
        dtype: the dtype of averaged parameters; None: the model's, at least float32.
        device: the device of the shadow; None: the model's.
        include: names, globs or a predicate: average only these tensors.
        exclude: names, globs or a predicate: do not average these tensors.
        flat: move the model into one block of memory for the fastest update.
        steps_per_epoch: steps per epoch, if needed before the first epoch ends.
        count: which steps count if there are several optimizers.

    >>> model = nn.Linear(2, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> sema = SwitchEMA(model, optimizer)
    >>> model(torch.ones(4, 2)).sum().backward()
    >>> optimizer.step()
    >>> sema.end_epoch(), sema.switches
    (True, 1)
    """

    name = "switch-ema"
    display_name = "Switch EMA"
    colour = 2
    active = True
    warns_of_slow_progress = True
    """Whether a switch that keeps too little progress warns; set False to silence."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizers = None,
        *,
        decay: DecayLike = DEFAULT_DECAY,
        update_every: int = 1,
        switch_every: ScheduleLike = 1,
        switch_start: float = 0,
        switch_stop: float | None = None,
        live_share: float = 0.0,
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
        self._schedule = as_schedule(switch_every, start=switch_start, stop=switch_stop)
        self._is_asked_at_steps = self._schedule.acts_on_steps
        if isinstance(self._schedule, Window) and isinstance(switch_every, Adaptive):
            raise ValueError("Adaptive takes neither switch_start nor switch_stop.")
        self._adaptive: AdaptiveSwitching | None = None
        if isinstance(self._schedule, Adaptive):
            self._adaptive = AdaptiveSwitching(self._schedule)
        self._live_share = check_range("live_share", live_share, 0, 1)
        self._resets = check_optimizer_state(optimizer_state, optimizer)
        self._last_switch: int | None = 0
        self._has_warned = self._has_warned_of_epochs = False
        self._kept: float | None = None
        # A parameter, and its values before and after the last switch.
        self._switched: tuple[Slot, Tensor, Tensor] | None = None
        if decay == AUTO:
            self._auto_decay().check(steps_per_epoch)
        super().__init__(
            model,
            optimizer,
            decay=decay,
            update_every=update_every,
            buffers=buffers,
            dtype=dtype,
            device=device,
            include=include,
            exclude=exclude,
            flat=flat,
            steps_per_epoch=steps_per_epoch,
            count=count,
        )

    def _check_uncounted_step(self) -> None:
        """Raise if a step continued from the weights before the last switch."""
        switched, self._switched = self._switched, None
        if switched is not None:
            slot, before, after = switched
            live = slot.local.double()
            undone = (live - before.double()).abs().sum()
            if undone < (after.double() - before.double()).abs().sum() / 3:
                raise RuntimeError(_UNDONE)

    def _check_use(self) -> None:
        super()._check_use()
        length = self._counters.steps_per_epoch
        if (
            not (self.epochs or self.switches or self._has_warned_of_epochs)
            and self.steps >= (_MANY_STEPS if length is None else 2 * length)
            and self._schedule.steps_between(None) is None  # counts epochs
        ):
            self._has_warned_of_epochs = True
            warnings.warn(
                f"SwitchEMA has not switched in {self.steps} steps, because "
                "end_epoch() was never called; call it after each epoch, pass "
                "switch_every='1000it' to count steps, or steps_per_epoch if an "
                "epoch is longer.",
                stacklevel=4,
            )

    def switch(self) -> None:
        """Continue training from the average, now.

        Warns once if a switch keeps less than a tenth of the progress since the last
        one, since training then hardly moves. With a model on an accelerator, the host
        synchronises once to check that the average is finite.

        Raises:
            FloatingPointError: the average is not finite; nothing was changed.
            RankMismatch: under DDP or FSDP2, the ranks' counters differ.
            RuntimeError: parameters were added or removed; call ``refresh()``.
        """
        self._refuse_while_shown("switch()")
        self._refuse_after_failure()
        self._check_structure()
        self._compare_ranks("switch()")
        # Weights loaded before the first step must not be overwritten.
        self._follow_until_first_step()
        self._switch()

    @property
    def kept_share(self) -> float | None:
        """The share of the progress since the previous switch that the latest kept.

        None before the first switch, and if a state was loaded in between.
        """
        return self._kept

    def _switch(self) -> None:
        # Only steps without a hook can come from an optimizer with its own copies.
        half = None if self._hook is not None else self._shadow.largest_half()
        before = None if half is None else half.local.detach().clone()
        self._write_live(self._live_share, self._resets)
        self._kept = self._switched = None
        if self._last_switch is not None and self.steps > self._last_switch:
            share = self._kept_share(self._last_switch)
            self._kept = self._live_share + (1 - self._live_share) * share
            self._warn_if_little_is_kept(self.steps - self._last_switch, self._kept)
            lag = (1 - self._kept) * (self.steps - self._last_switch)
            if half is not None and before is not None and lag >= _LEAST_LAG:
                self._switched = half, before, half.local.detach().clone()
        self._last_switch = self.steps

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` returned; see :class:`Averager`."""
        super().load_state_dict(state)
        self._last_switch = self._switched = None  # a state does not store it

    def reset(self) -> None:
        """Start again from the live weights."""
        super().reset()
        self._last_switch, self._switched = 0, None

    def refresh(self) -> None:
        """Follow a changed model; see :class:`Averager`."""
        super().refresh()
        if self._adaptive is not None:
            self._adaptive.follow_refresh(self)

    def restart(self) -> None:
        """Begin the average again from the live weights; see :class:`EMA`."""
        super().restart()
        self._last_switch = self._switched = None  # what was kept until here is unknown

    def _warn_if_little_is_kept(self, steps: int, kept: float) -> None:
        if kept < LEAST_KEPT and self.warns_of_slow_progress and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"This switch keeps {kept:.1%} of the progress of the last {steps} "
                f"steps, so training hardly moves: decay is "
                f"{self.current_decay:.6g}, and at most {_largest_decay(steps)} "
                f"would keep {LEAST_KEPT:.0%}. Lower the decay or switch less often.",
                stacklevel=5,
            )

    def _after_step(self) -> None:
        super()._after_step()
        if self._is_asked_at_steps and self._schedule.due_after_step(self.position):
            self._switch()

    def _auto_decay(self) -> SwitchAuto:
        return SwitchAuto(self._schedule)

    def _after_epoch(self) -> bool:
        if isinstance(self._decay, SwitchAuto) and self.epochs == 1:
            self._decay.check(self._counters.steps_per_epoch)
        due = self._schedule.due_after_epoch(self.position)
        if self._adaptive is not None:
            due, best = self._adaptive.decide(self)
            if best is not None:
                load_shadow_state(self._shadow, best)
                self._last_switch = None  # going back makes its kept share meaningless
        if due:
            self._switch()
        return due

    def _extra_state(self) -> dict[str, Any]:
        own = {} if self._adaptive is None else {KEY: self._adaptive.state()}
        return super()._extra_state() | own

    def _check_extra_state(self, state: Mapping[str, Any]) -> None:
        super()._check_extra_state(state)
        if self._adaptive is not None:
            self._adaptive.check(state[KEY], self)

    def _load_extra_state(self, state: Mapping[str, Any]) -> None:
        super()._load_extra_state(state)
        if self._adaptive is not None:
            self._adaptive.load(state[KEY])


def _largest_decay(steps: int) -> float:
    """Return the largest constant decay with which a switch keeps ``LEAST_KEPT``.

    Rounded down, since rounding up would keep less.
    """
    low, high = 0.0, 1.0
    for _ in range(60):
        d = (low + high) / 2
        kept = surviving_share(d, steps) if d < 1 else 0.0
        low, high = (d, high) if kept >= LEAST_KEPT else (low, d)
    digits = 1 - math.floor(math.log10(1 - low))
    return float(math.floor(low * 10**digits) / 10**digits)
