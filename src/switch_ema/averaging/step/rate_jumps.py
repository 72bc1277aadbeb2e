"""Notices a learning rate that jumps up again, which often begins a new phase."""

import math
from collections.abc import Iterable
from typing import Any

import torch

_FACTOR = 10.0
"""How far the rate must have fallen, and must rise again."""
_HELD = 0.1
"""Weight of the steps before the jump in the average, above which it matters."""


def largest_rate(optimizers: Iterable[Any]) -> float:
    """Return the largest learning rate of all parameter groups; 0 if unknown.

    A rate on an accelerator is unknown: reading it would make the host wait.
    """
    found = [0.0]
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            rate = group.get("lr")
            if isinstance(rate, torch.Tensor):
                rate = rate.item() if rate.device.type == "cpu" else None
            if isinstance(rate, (int, float)) and math.isfinite(rate):
                found.append(float(rate))
    return max(found)


class RateJumps:
    """Compares the learning rate with what it was when it was last looked at.

    It is looked at where the average is read and where an epoch ends, so a step costs
    nothing. A warm-up is not a jump: the rate must have fallen before.
    """

    def __init__(self) -> None:
        self._largest = self._last = 0.0
        self._step = 0

    def look(self, step: int, rate: float, decay: float) -> str | None:
        """Return a warning if the average holds on to weights from before a jump.

        Args:
            step: steps so far.
            rate: the current learning rate; 0 if unknown.
            decay: the current decay of the average.
        """
        before, since = self._last, self._step
        has_fallen = 0 < before * _FACTOR <= self._largest
        if rate > 0:
            self._largest = max(self._largest, rate)
            self._last, self._step = rate, step
        if not has_fallen or rate < _FACTOR * before:
            return None
        held = decay ** (step - since)
        if held < _HELD:
            return None
        return (
            f"The learning rate rose from {before:.3g} to {rate:.3g} since step "
            f"{since}, and the average still holds {held:.0%} of the weights from "
            "before. If a new phase of training has begun, such as other data, call "
            "restart(); within one phase nothing needs to be done."
        )
