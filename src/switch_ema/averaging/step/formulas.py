"""Formulas of torch's optimizers, fused with the average, in torch and in C."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from switch_ema.averaging.kernels import native
from switch_ema.averaging.step.blocks import Formula


def sgd_formula(group: dict[str, Any]) -> Formula:
    """Return the formula of SGD for the options of a parameter group."""
    keys = ("lr", "weight_decay", "momentum", "dampening")
    numbers = [*(float(group[key]) for key in keys), _sign(group)]
    flags = bool(group["momentum"]), bool(group["nesterov"])

    def in_c(table: native.Table, dtype: torch.dtype, share: float) -> None:
        native.sgd_(table, dtype, native.SgdNumbers(*numbers, share, *flags))

    with_momentum = _nesterov_row if group["nesterov"] else _momentum_row
    return Formula(numbers, with_momentum if group["momentum"] else _sgd_row, in_c)


def adam_formula(group: dict[str, Any], decoupled: bool) -> Formula:
    """Return the formula of AdamW (decoupled weight decay) or Adam."""
    rate, betas = float(group["lr"]), map(float, group["betas"])
    numbers = [rate, *betas, group["eps"], group["weight_decay"], _sign(group)]

    def in_c(table: native.Table, dtype: torch.dtype, share: float) -> None:
        native.adam_(table, dtype, native.AdamNumbers(*numbers, share, decoupled))

    return Formula(numbers, _adam_row if decoupled else _coupled_adam_row, in_c)


def _sign(group: dict[str, Any]) -> float:
    return -1.0 if group["maximize"] else 1.0


def _adam_row(
    weight: Tensor,
    gradient: Tensor,
    mean: Tensor,
    square: Tensor,
    shadow: Tensor,
    step: Tensor,
    numbers: list[Tensor],
    decoupled: bool = True,
) -> None:
    """Update one parameter with Adam or AdamW, using the formula of torch's kernel."""
    rate, beta1, beta2, epsilon, decay, sign, share = numbers
    gradient = sign * gradient
    if decoupled:
        old = weight * (1 - rate * decay)
    else:
        old, gradient = weight, gradient + decay * weight
    mean_now = mean + (gradient - mean) * (1 - beta1)
    square_now = square * beta2 + gradient * gradient * (1 - beta2)
    count = step + 1
    size, scale = rate / (1 - beta1**count), (1 - beta2**count).rsqrt()
    weight_now = old - size * mean_now / (square_now.sqrt() * scale + epsilon)
    shadow.copy_(shadow + (weight_now - shadow) * share)
    weight.copy_(weight_now)
    mean.copy_(mean_now)
    square.copy_(square_now)
    step.copy_(count)


_coupled_adam_row = partial(_adam_row, decoupled=False)


def _sgd_row(
    weight: Tensor, gradient: Tensor, shadow: Tensor, numbers: list[Tensor]
) -> None:
    """Update one parameter with SGD without momentum."""
    rate, decay, _, _, sign, share = numbers
    weight_now = weight - rate * (sign * gradient + decay * weight)
    shadow.copy_(shadow + (weight_now - shadow) * share)
    weight.copy_(weight_now)


def _momentum_row(
    weight: Tensor,
    gradient: Tensor,
    velocity: Tensor,
    shadow: Tensor,
    numbers: list[Tensor],
    nesterov: bool = False,
) -> None:
    """Update one parameter with SGD with momentum."""
    rate, decay, momentum, dampening, sign, share = numbers
    gradient = sign * gradient + decay * weight
    velocity_now = momentum * velocity + (1 - dampening) * gradient
    step = gradient + momentum * velocity_now if nesterov else velocity_now
    weight_now = weight - rate * step
    shadow.copy_(shadow + (weight_now - shadow) * share)
    weight.copy_(weight_now)
    velocity.copy_(velocity_now)


_nesterov_row = partial(_momentum_row, nesterov=True)
