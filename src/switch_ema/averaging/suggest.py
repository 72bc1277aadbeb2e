"""Suggests a method, a decay and an interval for a run of known length."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

from switch_ema._checks import check_choice, check_count
from switch_ema.averaging.schedules.auto import surviving_share
from switch_ema.averaging.schedules.windows import AUTO_SHARE, fraction

RateSchedule = Literal["constant", "cosine", "linear", "one-cycle", "step"]

_STRONG = 1.0
"""Windows ``1 / (1 - d)`` between two switches of a run that over-trains: 37% of the
progress survives a switch."""
_FEWEST_STEPS = 20
"""Minimum number of steps between two switches; fewer hardly make an average."""
_FEWEST_SWITCHES = 3


@dataclass(frozen=True)
class Suggestion:
    """A starting point, made by :func:`suggest`."""

    method: str
    """A name in ``METHODS``."""
    decay: str | float
    """The method's ``decay`` argument."""
    final_decay: float
    """The decay at the end of the run."""
    switch_every: int | None
    """Epochs between two switches; None: the method never switches."""
    surviving_share: float
    """Share of a straight drift that survives a switch; 1 without switches."""
    why: tuple[str, ...]
    """The reasons, one sentence each."""

    @property
    def code(self) -> str:
        """The line of code to write."""
        if self.switch_every is None:
            return f"EMA(model, optimizer, decay={self.decay!r})"
        interval = (
            "" if self.switch_every == 1 else f", switch_every={self.switch_every}"
        )
        return f"SwitchEMA(model, optimizer, decay={self.decay!r}{interval})"

    def __str__(self) -> str:
        """Format the suggestion in a few lines."""
        every = self.switch_every
        interval = "never" if every is None else f"every {every} epoch(s)"
        return "\n".join(
            (
                self.code,
                f"  method           {self.method}",
                f"  decay            {self.decay}, {self.final_decay:.6g} at the end",
                f"  switches         {interval}",
                f"  surviving share  {self.surviving_share:.0%}",
                *(f"  - {reason}" for reason in self.why),
            )
        )


def suggest(
    *,
    steps_per_epoch: int,
    epochs: int,
    schedule: RateSchedule = "cosine",
    over_trains: bool = False,
) -> Suggestion:
    """Suggest a method, a decay and an interval for a run.

    Args:
        steps_per_epoch: optimizer steps per epoch.
        epochs: epochs of the run.
        schedule: learning-rate schedule: "constant", or "cosine", "linear",
            "one-cycle" or "step", which decay to nearly zero.
        over_trains: whether plain training gets worse on held-out data before its end.

    >>> suggest(steps_per_epoch=500, epochs=90).code
    "EMA(model, optimizer, decay='auto')"
    >>> suggest(steps_per_epoch=500, epochs=90, over_trains=True).surviving_share
    0.37
    """
    check_count("steps_per_epoch", steps_per_epoch)
    check_count("epochs", epochs)
    check_choice("schedule", schedule, get_args(RateSchedule))
    interval = math.ceil(_FEWEST_STEPS / steps_per_epoch)
    if over_trains and interval * _FEWEST_SWITCHES <= epochs:
        return _switching(steps_per_epoch * interval, interval)
    total = steps_per_epoch * epochs
    why = [
        "A passive average cannot harm training, and its window of "
        f"{AUTO_SHARE:.0%} of the steps so far needs no tuning.",
        "With a constant learning rate the live weights stay noisy to the end, which "
        "is where averaging gains most."
        if schedule == "constant"
        else "With a learning rate that decays to nearly zero, averaging gains little "
        "at the end; it gains earlier.",
    ]
    if over_trains:
        why.append(
            f"The run has {epochs} epoch(s) of {steps_per_epoch} step(s), too few for "
            f"{_FEWEST_SWITCHES} switches at least {_FEWEST_STEPS} steps apart."
        )
    why.append("With held-out data, Best keeps the best average of all epochs.")
    final = fraction()(total - 1)
    return Suggestion("ema", "auto", final, None, 1.0, tuple(why))


def _switching(steps: int, interval: int) -> Suggestion:
    decay = 1 - _STRONG / steps
    decay = float(f"{decay:.{max(2, math.ceil(math.log10(steps)) + 1)}g}")
    share = round(surviving_share(decay, steps), 2)
    why = (
        f"The run over-trains: switches that keep {share:.0%} of the progress act like "
        "a smaller learning rate, so training gets worse later or not at all.",
        f"decay = 1 - 1/n with n = {steps} steps between two switches.",
        "Compare with EMA and the same learning rate times "
        f"{share:g}, which often does as well.",
        "With held-out data, EMA with Best gained as much without a switch.",
    )
    return Suggestion("switch-ema", decay, decay, interval, share, why)
