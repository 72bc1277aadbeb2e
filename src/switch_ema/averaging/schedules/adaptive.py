"""Switch once held-out values show that the run over-trains. Experimental."""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import nn

from switch_ema._checks import check_count, check_positive
from switch_ema.averaging.schedules.intervals import Schedule
from switch_ema.averaging.schedules.progress import Position

Probe = Callable[[nn.Module], tuple[float, float]]
"""Returns the held-out negative log-likelihood and error of a model."""


@dataclass(frozen=True)
class Adaptive(Schedule):
    """Do not switch until the average over-trains; then go back, and switch each epoch.

    After each epoch ``probe`` measures the average on held-out data. Once its negative
    log-likelihood is 3% above the best so far and its error has not improved for 4
    epochs, training goes back to the average with the least error, and switches after
    every epoch from then on. If the probe raises or returns a number that is not
    finite, no switch is decided in that epoch, with one warning. With several processes
    all of them call the probe, and rank 0's numbers count.

    This is experimental: it should help a run that over-trains, and may hurt one that
    does not. :class:`Best` does not change training.

    Args:
        probe: ``probe(model)`` returns the negative log-likelihood and the error of
            the average, which the model holds in evaluation mode without gradients.
        patience: epochs without a lower error.
        tolerance: the relative rise of the negative log-likelihood.

    >>> Adaptive(lambda model: (0.3, 0.1)).patience
    4
    """

    probe: Probe = field(repr=False)
    patience: int = 4
    tolerance: float = 0.03

    def __post_init__(self) -> None:
        if not callable(self.probe):
            raise ValueError(f"probe must be a callable, got {self.probe!r}.")
        check_count("patience", self.patience)
        check_positive("tolerance", self.tolerance)

    @property
    def acts_on_steps(self) -> bool:
        """False: it decides only at the end of an epoch."""
        return False

    def progress(self, position: Position) -> float:
        """Return the epochs so far."""
        return position.epochs


@dataclass
class Observations:
    """Observations of an adaptive rule."""

    best_nll: float = math.inf
    best_error: float = math.inf
    nll_of_best: float = math.inf
    """The negative log-likelihood of the average with the least error."""
    epochs_since_best: int = 0
    is_switching: bool = False

    def is_best(self, nll: float, error: float) -> bool:
        """Whether this average has the least error so far; ties go to the lower NLL."""
        return (error, nll) < (self.best_error, self.nll_of_best)

    def note(self, rule: Adaptive, nll: float, error: float) -> bool:
        """Record an epoch's values; return whether to go back and start switching."""
        improves = error < self.best_error
        if self.is_best(nll, error):
            self.best_error, self.nll_of_best = error, nll
        self.epochs_since_best = 0 if improves else self.epochs_since_best + 1
        self.best_nll = min(self.best_nll, nll)
        self.is_switching = (
            nll > (1 + rule.tolerance) * self.best_nll
            and self.epochs_since_best >= rule.patience
        )
        return self.is_switching

    def state(self) -> dict[str, Any]:
        """Return all fields by name."""
        return asdict(self)

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> "Observations":
        """Restore what :meth:`state` returned; raise TypeError if it is invalid."""
        found = cls(**state)
        for name, value in asdict(found).items():
            wanted = {"is_switching": bool, "epochs_since_best": int}.get(name, float)
            if type(value) is not wanted:
                raise TypeError(f"{name} is {value!r}")
        return found
