"""`switch-ema suggest`: a starting point for a run of known length."""

from dataclasses import dataclass
from typing import Literal

from switch_ema.bench.errors import UsageError
from switch_ema.commands.output import AnyConsole


@dataclass(frozen=True)
class Suggest:
    """Suggest method, decay and interval for a run, with reasons.

    See docs/choosing.md for the evidence and for cases in which this misleads.

    - switch-ema suggest --steps-per-epoch 500 --epochs 90
    """

    steps_per_epoch: int
    """Optimizer steps per epoch."""
    epochs: int
    """Number of epochs."""
    schedule: Literal["constant", "cosine", "linear", "one-cycle", "step"] = "cosine"
    """Learning-rate schedule; all but constant decay to nearly zero."""
    over_trains: bool = False
    """Whether plain training gets worse on held-out data before it ends."""

    def __call__(self, console: AnyConsole) -> None:
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
