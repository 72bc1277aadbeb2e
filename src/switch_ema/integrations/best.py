"""The best average by a metric that a trainer measures in its validation."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from switch_ema.averaging.averager import Averager
from switch_ema.averaging.best import Best


@dataclass(frozen=True)
class BestBy:
    """Tell a callback to keep the best average by a validation metric.

    After training, tests, predictions and exports show that average only if the last
    one is worse by more than one standard error; see :class:`switch_ema.Best`.
    """

    metric: str
    """The metric's name as the trainer logs it, such as "val_accuracy"."""
    higher_is_better: bool
    n: int | None = None
    """Validation examples of a metric that is a share in [0, 1]."""
    error: float | None = None
    """The standard error of any other metric."""
    folder: str | Path | None = None
    """Keep the average in files in this folder, instead of in memory."""

    def make(self, averager: Averager) -> Best:
        """Make what keeps it."""
        return Best(
            averager,
            higher_is_better=self.higher_is_better,
            n=self.n,
            error=self.error,
            folder=self.folder,
        )

    def read(self, metrics: Mapping[str, Any]) -> float:
        """Find the score among the metrics of a validation."""
        if self.metric not in metrics:
            known = ", ".join(sorted(map(str, metrics))) or "none"
            raise ValueError(
                f"The validation measured no {self.metric!r} to keep the best average "
                f"by; its metrics are {known}."
            )
        return float(metrics[self.metric])
