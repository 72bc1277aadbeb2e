"""Averages that may begin later than the training, and begin again."""

from collections.abc import Mapping
from typing import Any

import torch

from switch_ema._checks import check_count
from switch_ema.averaging._signals import Uninterrupted
from switch_ema.averaging.averager import Averager
from switch_ema.averaging.schedules.start import StartLike, as_start
from switch_ema.averaging.shadow.state import StateMismatch

_NEVER = 2**63
_KEY = "average_start"


class LateStart(Averager):
    """Shows the live weights until ``start``, and averages from there on.

    The average begins as a copy of the live weights at the start, and its schedule
    counts from there, so a warm-up is not over before it begins.
    """

    def _set_start(self, start: StartLike, update_every: int) -> None:
        """Read the options; a method calls this before ``Averager.__init__``."""
        self._rule = as_start(start)
        self._every = check_count("update_every", update_every)
        self._begin_at(0 if self._rule is None else None)

    def _begin_at(self, step: int | None) -> None:
        """Set the step at which the average began; None: it has not."""
        self._began = step
        self._first = 1 + (step or 0)
        # No step is due before the start: a check would cost every later step.
        self._update_every = _NEVER if step is None else self._every

    @property
    def has_average(self) -> bool:
        """Whether the average has begun."""
        return self._began is not None

    def _begin_if_reached(self) -> None:
        if self._rule is not None and self._rule.is_reached(self.position):
            for shadow in self._shadows().values():
                shadow.read_()
            self._begin_at(self.steps)

    def restart(self) -> None:
        """Begin the average again from the live weights, for a new phase of training.

        Call it when the data, the task or the learning rate change: the average would
        otherwise hold on to weights from before. Its schedule counts from here;
        ``steps`` and ``epochs`` go on. With several processes, call it on all of them.
        Before ``start`` there is no average, and nothing happens.
        """
        self._refuse_while_shown("restart()")
        self._refuse_after_failure()
        self._check_structure()
        if self._began is None:
            return
        with Uninterrupted():
            for shadow in self._shadows().values():
                shadow.read_()
            self._begin_at(self.steps)

    def _after_epoch(self) -> bool:
        if self._began is None:
            self._begin_if_reached()
        return super()._after_epoch()

    def _configured(self) -> dict[str, Any]:
        return {} if self._rule is None else {"start": self._rule}

    def _extra_state(self) -> dict[str, Any]:
        is_needed = self._rule is not None or self._began
        return {_KEY: self._began} if is_needed else {}

    def _check_extra_state(self, state: Mapping[str, Any]) -> None:
        self._start_in(state)

    def _load_extra_state(self, state: Mapping[str, Any]) -> None:
        self._begin_at(self._start_in(state))

    def _start_in(self, state: Mapping[str, Any]) -> int | None:
        """Return the step at which the average of a state began; 0 if not stored."""
        began = state.get(_KEY, 0)
        is_whole = isinstance(began, int) and not isinstance(began, bool)
        is_step = is_whole and 0 <= began <= state.get("steps", began)
        if not is_step and (began is not None or self._rule is None):
            raise StateMismatch(
                f"The state's {_KEY} is {began!r}; it must be a step that the state "
                "has counted, or None with the start= that it waits for."
            )
        return None if began is None else int(began)

    def load_average(
        self,
        weights: Mapping[str, torch.Tensor],
        *,
        steps: int = 0,
        epochs: int = 0,
        **extra: Any,
    ) -> None:
        """Load an average, which then needs no start; see :class:`Averager`."""
        if self._rule is not None:
            extra = {_KEY: 0} | extra
        began = self._began
        if self._rule is None:
            self._begin_at(0)  # a restart was one of the replaced average
        try:
            super().load_average(weights, steps=steps, epochs=epochs, **extra)
        except BaseException:
            self._begin_at(began)
            raise
