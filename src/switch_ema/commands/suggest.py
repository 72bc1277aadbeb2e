"""`switch-ema suggest`: what to begin with, for a run of known length."""

from dataclasses import dataclass
from typing import Literal

from rich.console import Console

from switch_ema.bench.errors import UsageError


@dataclass(frozen=True)
class Suggest:
    """Suggest a method, a decay and an interval for a run, and say why.

    docs/choosing.md has the evidence, and the cases in which it misleads.
    """

    steps_per_epoch: int
    """Optimizer steps of an epoch."""
    epochs: int
    """Epochs of the run."""
    schedule: Literal["constant", "cosine", "linear", "one-cycle", "step"] = "cosine"
    """Of the learning rate; all but constant decay to nearly zero."""
    over_trains: bool = False
    """Whether plain training gets worse on held-out data before it ends."""

    def __call__(self, console: Console) -> None:
        """Print the suggestion."""
        from switch_ema.averaging.suggest import suggest

        try:
            suggestion = suggest(
                steps_per_epoch=self.steps_per_epoch,
                epochs=self.epochs,
                schedule=self.schedule,
                over_trains=self.over_trains,
            )
        except ValueError as error:
            raise UsageError(str(error)) from None
        console.print(str(suggestion), markup=False, highlight=False, soft_wrap=True)
