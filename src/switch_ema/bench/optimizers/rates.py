"""Separate learning rates for the networks of a stack."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer, RAdam

from switch_ema.bench.errors import UsageError
from switch_ema.bench.optimizers.overrides import check_change
from switch_ema.bench.spec import Change

_PROPORTIONAL = (SGD, Adam, AdamW, RAdam)
"""Optimizers whose step, including decoupled weight decay, is proportional to the
learning rate."""


def rate_factor(optimizer: Optimizer, changes: Iterable[Change]) -> float:
    """Return the factor by which changes multiply the learning rate.

    >>> sgd = SGD([torch.zeros(1)], lr=0.1)
    >>> rate_factor(sgd, [Change("lr", 0.05), Change("lr", 0.5, is_factor=True)])
    0.25
    """
    own = rate = optimizer.defaults["lr"]
    for change in changes:
        rate = rate * change.value if change.is_factor else change.value
        check_change(change, own, rate)
    return float(rate / own)


def scale_steps(optimizer: Optimizer, factors: Sequence[float]) -> None:
    """Multiply the learning rate of each network of a stack by a factor.

    After the optimizer's step, each network's change is scaled by its factor. Call this
    before registering other step hooks.

    Args:
        optimizer: its parameters have the network as first dimension.
        factors: one per network.
    """
    if type(optimizer) not in _PROPORTIONAL:
        known = ", ".join(kind.__name__ for kind in _PROPORTIONAL)
        raise UsageError(
            f"stacking learning rates needs {known}, got "
            f"{type(optimizer).__name__}; choose --stack auto."
        )
    parameters: list[Tensor] = [
        p for group in optimizer.param_groups for p in group["params"]
    ]
    before: list[Tensor] = []

    @torch.no_grad()
    def remember(*_: Any) -> None:
        before[:] = [parameter.clone() for parameter in parameters]

    @torch.no_grad()
    def scale(*_: Any) -> None:
        for old, new in zip(before, parameters, strict=True):
            own = new.new_tensor(factors).view(-1, *[1] * (new.ndim - 1))
            new.copy_(torch.lerp(old, new, own))
        before.clear()

    optimizer.register_step_pre_hook(remember)
    optimizer.register_step_post_hook(scale)
