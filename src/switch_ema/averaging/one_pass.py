"""Update and average in one pass over memory, compiled by torch.compile.

For devices that the kernels in C do not know. The compiler writes one loop that reads
the gradient and reads and writes the weight, its moments and its shadow: 36 bytes per
parameter with AdamW instead of 28 for the step and 12 for an average after it. What
changes from step to step (learning rate, decay, the number of steps) is passed as
tensors, so that nothing is compiled again.
"""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from switch_ema.averaging.blocks import Formula, Row, StepAverage, Work

MOST_VERSIONS = 3
"""Sets of parameters that are compiled; with more, such as by chance, none is."""


class OnePass:
    """Compiled loops for the parameters that are updated and averaged."""

    def __init__(self, compiles: bool) -> None:
        self.was_asked_for = self._compiles = compiles
        self._versions: dict[tuple[Any, ...], Callable[..., None]] = {}

    @property
    def compiles(self) -> bool:
        """Whether it was asked to, and has not failed."""
        return self._compiles

    def run(self, work: Work, average: StepAverage) -> Work | None:
        """Do what can be done in one pass; return the work that is left."""
        if not self._compiles or work.formula is None:
            return work
        rows = work.averaged_rows(average)
        if not rows or not self._call(work.formula, rows, average.weight):
            return work
        done = {id(row[0]) for row in rows}
        average.done |= done
        return work.without(done)

    def _call(self, formula: Formula, rows: list[Row], weight: float) -> bool:
        columns = [list(column) for column in zip(*rows, strict=True)]
        key = formula.row, len(columns), tuple(map(torch.Tensor.size, columns[0]))
        compiled = self._versions.get(key)
        if compiled is None and len(self._versions) >= MOST_VERSIONS:
            self._compiles = False
            return False
        numbers = [*formula.numbers, weight]
        scalars = [torch.tensor(number, dtype=torch.float64) for number in numbers]
        try:
            if compiled is None:
                compiled = self._versions[key] = _compile(formula.row)
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
    step: Tensor,
    numbers: list[Tensor],
    decoupled: bool = True,
) -> None:
    """One parameter of Adam or AdamW, in the form of torch's fused kernel."""
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


coupled_adam_row = partial(adam_row, decoupled=False)


def sgd_row(
    weight: Tensor, gradient: Tensor, shadow: Tensor, numbers: list[Tensor]
) -> None:
    """One parameter of SGD without momentum."""
    rate, decay, _, _, sign, share = numbers
    weight_now = weight - rate * (sign * gradient + decay * weight)
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
    rate, decay, momentum, dampening, sign, share = numbers
    gradient = sign * gradient + decay * weight
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
