"""Update and average in one pass over memory, compiled by torch.compile.

The compiler writes one loop per parameter that reads the gradient and reads and writes
the weight, its moments and its shadow: 36 bytes per parameter with AdamW instead of 28
for the step and 12 for an average after it. What changes from step to step (learning
rate, decay, bias correction) is passed as tensors, so that nothing is compiled again.
"""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from switch_ema.averaging.blocks import StepAverage, Work

MOST_VERSIONS = 3
"""Sets of parameters that are compiled; with more, such as by chance, none is."""


class OnePass:
    """Compiled loops for the parameters that are updated and averaged."""

    def __init__(self, compiles: bool) -> None:
        self._compiles = compiles
        self._versions: dict[tuple[Any, ...], Callable[..., None]] = {}

    def run(self, work: Work, average: StepAverage) -> Work:
        """Do what can be done in one pass; return the work that is left."""
        if not self._compiles or work.formula is None:
            return work
        rows = [i for i, p in enumerate(work.columns[0]) if p in average.shadows]
        if not rows:
            return work
        columns = [[column[i] for i in rows] for column in work.columns]
        shadows = [average.shadows[work.columns[0][i]] for i in rows]
        numbers = [*work.numbers(rows), average.weight]
        if not self._call(work.formula, [*columns, shadows], numbers):
            return work
        for i in rows:
            del average.shadows[work.columns[0][i]]
        return work.without(set(rows))

    def _call(
        self, formula: Callable[..., Any], columns: list[list[Tensor]], numbers: Any
    ) -> bool:
        if any(number is None for number in numbers):
            return False
        key = formula, len(columns), tuple(map(torch.Tensor.size, columns[0]))
        compiled = self._versions.get(key)
        if compiled is None and len(self._versions) >= MOST_VERSIONS:
            self._compiles = False
            return False
        scalars = [torch.tensor(number, dtype=torch.float64) for number in numbers]
        try:
            if compiled is None:
                compiled = self._versions[key] = _compile(formula)
            compiled(columns, scalars)
        except Exception as error:  # whatever a compiler, or its absence, raises
            warnings.warn(
                "torch.compile does not work here, so weights are averaged block by "
                f"block: {_first_line(error)}",
                stacklevel=2,
            )
            self._compiles = False
            return False
        return True


def adam_row(
    weight: Tensor,
    gradient: Tensor,
    mean: Tensor,
    square: Tensor,
    shadow: Tensor,
    numbers: list[Tensor],
    decoupled: bool = True,
) -> None:
    """One parameter of Adam or AdamW, in the form of torch's fused kernel."""
    decay, new_mean, old_square, size, scale, epsilon, share = numbers
    if decoupled:
        old = weight * (1 - decay)
    else:
        old, gradient = weight, gradient + decay * weight
    mean_now = mean + (gradient - mean) * new_mean
    square_now = square * old_square + gradient * gradient * (1 - old_square)
    weight_now = old - size * mean_now / (square_now.sqrt() * scale + epsilon)
    shadow.copy_(shadow + (weight_now - shadow) * share)
    weight.copy_(weight_now)
    mean.copy_(mean_now)
    square.copy_(square_now)


coupled_adam_row = partial(adam_row, decoupled=False)


def sgd_row(
    weight: Tensor, gradient: Tensor, shadow: Tensor, numbers: list[Tensor]
) -> None:
    """One parameter of SGD without momentum."""
    rate, decay, _, _, share = numbers
    weight_now = weight - rate * (gradient + decay * weight)
    shadow.copy_(shadow + (weight_now - shadow) * share)
    weight.copy_(weight_now)


def momentum_row(
    weight: Tensor,
    gradient: Tensor,
    velocity: Tensor,
    shadow: Tensor,
    numbers: list[Tensor],
    nesterov: bool = False,
) -> None:
    """One parameter of SGD with momentum."""
    rate, decay, momentum, dampening, share = numbers
    gradient = gradient + decay * weight
    velocity_now = momentum * velocity + (1 - dampening) * gradient
    step = gradient + momentum * velocity_now if nesterov else velocity_now
    weight_now = weight - rate * step
    shadow.copy_(shadow + (weight_now - shadow) * share)
    weight.copy_(weight_now)
    velocity.copy_(velocity_now)


nesterov_row = partial(momentum_row, nesterov=True)


def _compile(row: Callable[..., None]) -> Callable[..., None]:
    def all_rows(columns: list[list[Tensor]], numbers: list[Tensor]) -> None:
        for tensors in zip(*columns, strict=True):
            row(*tensors, numbers)

    # The wrapper in C++ saves the time that Python takes between two loops.
    options: Any = {"cpp_wrapper": True}
    return torch.compile(all_rows, fullgraph=True, dynamic=False, options=options)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].rstrip(".") + "."
