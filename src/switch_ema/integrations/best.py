"""The best average by a validation metric of the trainer."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from switch_ema.averaging.averager import Averager
from switch_ema.averaging.best import Best, is_clearly_worse, standard_error


@dataclass(frozen=True)
class BestBy:
    """Ask a callback to keep the best average by a validation metric.

    After training, tests, predictions and exports use that average only if the last
    one is worse by more than one standard error; see :class:`switch_ema.Best`.
    """

    metric: str
    """The metric's name as the trainer logs it, such as "val_accuracy"."""
    higher_is_better: bool
    n: int | None = None
    """Number of validation examples, for a metric that is a proportion in [0, 1]."""
    error: float | None = None
    """The standard error of any other metric."""
    folder: str | Path | None = None
    """Store the average in this folder instead of in memory."""

    def make(self, averager: Averager) -> Best:
        """Return the :class:`Best` that keeps it."""
        return Best(
            averager,
            higher_is_better=self.higher_is_better,
            n=self.n,
            error=self.error,
            folder=self.folder,
        )

    def is_clearly_worse(self, score: float, other: float, errors: float) -> bool:
        """Whether a score is worse than another by more than some standard errors."""
        error = self.error or 0.0
        if self.n is not None:
            error = standard_error(other, self.n)
        return is_clearly_worse(score, other, errors * error, self.higher_is_better)

    def read(self, metrics: Mapping[str, Any]) -> float:
        """Return the score from the metrics of a validation."""
        if self.metric not in metrics:
            known = ", ".join(sorted(map(str, metrics))) or "none"
            raise ValueError(
                f"best needs the metric {self.metric!r}, but the validation reported "
                f"{known}."
            )
        return float(metrics[self.metric])
