"""Adaptive switching inside the averager: measure, keep the best average, go back."""

import math
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from switch_ema.averaging.schedules.adaptive import Adaptive, Observations
from switch_ema.averaging.shadow.state import StateMismatch

if TYPE_CHECKING:
    from switch_ema.averaging.averager import Averager

KEY = "adaptive"
"""Its key in a state dict."""


class AdaptiveSwitching:
    """Decides after each epoch whether to switch, by the rule of :class:`Adaptive`."""

    def __init__(self, rule: Adaptive) -> None:
        self._rule = rule
        self._seen = Observations()
        self._best: dict[str, Tensor] = {}
        self._has_warned = False

    def decide(self, averager: "Averager") -> tuple[bool, Mapping[str, Tensor] | None]:
        """Return whether to switch, and the average to go back to before, if any."""
        if self._seen.is_switching:
            return True, None
        nll, error = (averager._agreed(value) for value in self._measure(averager))
        if not (math.isfinite(nll) and math.isfinite(error)):
            return False, None
        if self._seen.is_best(nll, error):
            self._best = averager._copy_average()
        if not self._seen.note(self._rule, nll, error):
            return False, None
        best, self._best = self._best, {}
        return True, best

    def _measure(self, averager: "Averager") -> tuple[float, float]:
        """Run the probe; if it fails, return NaN and warn once."""
        try:
            with averager.averaged() as model, torch.no_grad():
                was_training = model.training
                model.eval()
                try:
                    nll, error = map(float, self._rule.probe(model))
                finally:
                    model.train(was_training)
            problem = "" if math.isfinite(nll + error) else f"returned {nll}, {error}"
        except Exception as failure:
            nll = error = math.nan
            problem = f"raised {type(failure).__name__}: {failure}"
        if problem and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"The probe of Adaptive {problem}; no switch is decided in those "
                "epochs.",
                stacklevel=2,
            )
        return nll, error

    def follow_refresh(self, averager: "Averager") -> None:
        """Fit the best average to a model that has changed."""
        if self._best:
            averager._fit_copy(self._best)

    def state(self) -> dict[str, Any]:
        """Return the observations, and the best average while it may be needed."""
        best = {name: tensor.clone() for name, tensor in self._best.items()}
        return {"seen": self._seen.state(), "best": best}

    def check(self, state: Any, averager: "Averager") -> None:
        """Raise StateMismatch unless :meth:`load` can load the state."""
        if not isinstance(state, Mapping) or state.keys() != {"seen", "best"}:
            raise StateMismatch("The state has no observations of an adaptive rule.")
        try:
            Observations.of(state["seen"])
        except TypeError as error:
            raise StateMismatch(
                f"The state's observations do not fit: {error}."
            ) from None
        if state["best"]:
            averager._check_copy(state["best"])

    def load(self, state: Any) -> None:
        """Restore what :meth:`state` returned and :meth:`check` passed."""
        self._seen, self._best = Observations.of(state["seen"]), dict(state["best"])
