"""Start switching once held-out metrics show over-training. Experimental."""

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

    After each epoch, ``probe`` evaluates the average on held-out data. Once its
    negative log-likelihood is 3% above the best so far and its error has not improved
    for 4 epochs, training returns to the average with the lowest error and then
    switches after every epoch. If the probe raises or returns a non-finite number, no
    switch is decided in that epoch, and a warning is issued once. In distributed
    training every process calls the probe, and rank 0's values decide.

    Experimental: it should help runs that over-train and may hurt others.
    :class:`Best` also picks the best average, and does not change training.

    Args:
        probe: ``probe(model)`` returns the negative log-likelihood and the error of
            the model, which holds the average, in evaluation mode under no_grad.
        patience: epochs without a lower error before switching starts.
        tolerance: relative rise of the negative log-likelihood that is required, too.

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
        """False: decisions are made only at the end of an epoch."""
        return False

    def progress(self, position: Position) -> float:
        """Return the number of finished epochs."""
        return position.epochs


@dataclass
class Observations:
    """Held-out metrics that an adaptive rule has seen so far."""

    best_nll: float = math.inf
    best_error: float = math.inf
    nll_of_best: float = math.inf
    """Negative log-likelihood of the average with the lowest error."""
    epochs_since_best: int = 0
    is_switching: bool = False

    def is_best(self, nll: float, error: float) -> bool:
        """Whether this is the lowest error so far; ties go to the lower NLL."""
        return (error, nll) < (self.best_error, self.nll_of_best)

    def note(self, rule: Adaptive, nll: float, error: float) -> bool:
        """Record an epoch's metrics; return whether to go back and start switching."""
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
        """Restore the result of :meth:`state`; raise TypeError if it is invalid."""
        found = cls(**state)
        for name, value in asdict(found).items():
            wanted = {"is_switching": bool, "epochs_since_best": int}.get(name, float)
            if type(value) is not wanted:
                raise TypeError(f"{name} is {value!r}")
        return found
