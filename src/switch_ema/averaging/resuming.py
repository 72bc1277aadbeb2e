"""Saving an average with its counts, and going on from there."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from switch_ema.averaging.counting import COUNTERS, Counters
from switch_ema.averaging.shadow.state import (
    StateMismatch,
    check_counters,
    check_shadow_state,
    load_shadow_state,
    shadow_state,
)
from switch_ema.averaging.shadowed import ShadowedModel
from switch_ema.averaging.step.hooks import StepHook


class Resumable(ShadowedModel):
    """What makes a resumed training equal to one that was not interrupted."""

    name: ClassVar[str]
    _counters: Counters
    _hook: StepHook | None
    _fresh_state: dict[str, Any]
    _failure: str | None
    """Why an average can no longer be gone on with, if so."""
    _mark: list[complex] | None
    """What the model was at the last end of an epoch, if that is known."""

    def _extra_state(self) -> dict[str, Any]:
        """Return what resuming needs beyond the shadows and the counters."""
        return {}

    def _load_extra_state(self, state: Mapping[str, Any]) -> None:
        """Take back what ``_extra_state`` returned; if it does not fit, raise first."""
        return None  # most methods keep nothing more

    def state_dict(self) -> dict[str, Any]:
        """Return counters and averages, to resume bit for bit.

        It holds numbers, strings and tensors only, so ``torch.load`` reads it with
        ``weights_only=True``; it is a snapshot that later steps do not change.
        """
        self._follow_until_first_step()
        state: dict[str, Any] = {"method": self.name} | self._counters.state()
        state["waiting_for"] = sorted(self._hook.waiting_for) if self._hook else []
        for name, shadow in self._shadows().items():
            state[name] = shadow_state(shadow)
        return state | self._extra_state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` returned.

        Raises:
            StateMismatch: the state is of another method or model. It says what is
                missing, unexpected or of another shape, and nothing has changed.
        """
        self._refuse_while_shown("load_state_dict()")
        self._check_structure()
        others = ["waiting_for", *self._fresh_state]
        check_counters(state, self.name, COUNTERS, others)
        for name, shadow in self._shadows().items():
            check_shadow_state(shadow, state.get(name), name)
        self._load_extra_state(state)
        for name, shadow in self._shadows().items():
            load_shadow_state(shadow, state[name])
        self._counters.load(state)
        if self._hook:
            self._hook.wait_for(state["waiting_for"])
        self._has_started = True
        self._failure = self._mark = None

    def load_average(
        self,
        weights: Mapping[str, torch.Tensor],
        *,
        steps: int = 0,
        epochs: int = 0,
        **extra: Any,
    ) -> None:
        """Take over an average that another library made.

        Args:
            weights: averaged tensors by plain name; those not given keep their value.
            steps: how many optimizer steps it has seen, which a warm-up goes on from.
            epochs: how many epochs it has seen.
            extra: what else the method counts, such as ``averaged_models`` for SWA.
        """
        plain = {name: slot.name for slot in self._shadow.slots for name in slot.names}
        unknown = {*(weights.keys() - plain), *(extra.keys() - self._fresh_state)}
        if unknown:
            raise StateMismatch(
                f"There is no {', '.join(sorted(unknown))} to load the average into."
            )
        state = self.state_dict() | extra
        state["shadow"] |= {plain[name]: weights[name] for name in weights}
        state |= {"steps": steps, "epoch_start": steps, "epochs": epochs}
        self.load_state_dict(state)

    def reset(self) -> None:
        """Start again from the live weights."""
        self._refuse_while_shown("reset()")
        self._check_structure()
        self._counters.reset()
        self._load_extra_state(self._fresh_state)
        for shadow in self._shadows().values():
            shadow.read_()
        self._failure, self._mark = None, self._shadow.mark()
