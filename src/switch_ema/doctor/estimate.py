"""Estimates the decay of an average from two checkpoints.

Between two checkpoints the live weights go from ``L`` to ``L + D`` and the average from
``S`` to ``S + M``, in ``n`` updates with decay ``d``. If the live weights move in a
straight line, or as a random walk, whose mean between two known ends is that line, then

    M = a (L - S) + f D + noise,   a = 1 - e^-x,   f = 1 - a / x,   x = -n log d.

So the elements of a tensor are a regression with one unknown: ``x``, the number of time
constants between the checkpoints. With known ``n``, the decay is ``e^(-x / n)``.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

CHUNKS = 8
"""Parts of a tensor whose estimates give the standard error."""
_GRID = torch.logspace(-6, 3, 181, dtype=torch.float64)
_LARGEST = float(_GRID[-1])


@dataclass(frozen=True)
class DecayEstimate:
    """Time constants between two checkpoints, with a measure of doubt."""

    x: float
    """DecayEstimate of ``-n log d``: 0 if the average stood still."""
    log_error: float
    """Standard error of ``log x``; infinite if the data do not decide."""
    fit: float
    """Share of the average's movement that the rule explains."""

    def decay(self, steps: int) -> float:
        """Return the decay per step."""
        return math.exp(-self.x / steps)

    def differs_from(self, x: float, factor: float) -> bool:
        """Whether x is off by a factor or more, and by four standard errors."""
        if not self.x or not x:
            return bool(self.x) != bool(x)
        gap = abs(math.log(self.x / x))
        return gap > math.log(factor) and gap > 4 * self.log_error


def coefficients(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``a`` and ``f``."""
    a = -torch.expm1(-x)
    # f = x/2 - x^2/6 + ... loses its digits below 1e-3 otherwise.
    f = torch.where(x < 1e-3, x / 2 - x * x / 6, 1 - a / x)
    return a, f


def products(moved: Tensor, behind: Tensor, drift: Tensor) -> Tensor:
    """Return the inner products of M, L - S and D, one 3 by 3 matrix per chunk."""
    columns = torch.stack([moved, behind, drift], dim=1).double()
    chunks = columns.chunk(min(CHUNKS, len(columns)))
    return torch.stack([chunk.T @ chunk for chunk in chunks])


def estimate(grams: Tensor) -> DecayEstimate:
    """DecayEstimate x from the matrices of the chunks."""
    total = grams.sum(0)
    moved = float(total[0, 0])
    if not moved or not math.isfinite(moved):
        return DecayEstimate(0.0, 0.0, 1.0)
    x, rest = _best(total)
    logs = [math.log(_best(gram)[0]) for gram in grams if float(gram[0, 0]) > 0]
    error = math.inf
    if len(logs) > 1:
        error = float(torch.tensor(logs).std()) / math.sqrt(len(logs))
    return DecayEstimate(x, error, 1 - rest / moved)


def pool(grams: Sequence[Tensor]) -> DecayEstimate:
    """DecayEstimate one x for several tensors, each with the same weight."""
    scaled = [scale(gram) for gram in grams if float(gram.sum(0)[0, 0])]
    return estimate(torch.stack(scaled)) if scaled else DecayEstimate(0.0, 0.0, 1.0)


def scale(gram: Tensor) -> Tensor:
    """Return the matrix of a tensor in units of the movement of both weights."""
    total = gram.sum(0)
    return total / (total[0, 0] + total[2, 2])


def _best(gram: Tensor) -> tuple[float, float]:
    """Return the x with the smallest sum of squares, and that sum."""
    grid = _GRID
    best, least = 0.0, math.inf
    for _ in range(3):
        a, f = coefficients(grid)
        v = torch.stack([torch.ones_like(a), -a, -f], dim=1)
        rest = ((v @ gram) * v).sum(1)
        index = int(rest.argmin())
        best, least = float(grid[index]), float(rest[index])
        low = float(grid[max(index - 1, 0)])
        high = float(grid[min(index + 1, len(grid) - 1)])
        grid = torch.logspace(
            math.log10(low), math.log10(high), 41, dtype=torch.float64
        )
    return best, max(least, 0.0)


def is_bounded(x: float) -> bool:
    """Whether an estimate is inside the grid: the average neither stands nor copies."""
    return 2e-6 < x < _LARGEST / 2
