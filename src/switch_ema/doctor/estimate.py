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
from statistics import median

import torch
from torch import Tensor

_CHUNKS = 8
"""Parts of a tensor whose estimates give the standard error."""
_SATURATED = 5.0
"""Time constants above which the average forgets the first checkpoint, so that the path
of the live weights matters more than the decay."""
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

    @property
    def is_decisive(self) -> bool:
        """Whether it explains a movement at all."""
        return self.fit > 0.3 and self.x > 2e-6

    @property
    def is_bounded(self) -> bool:
        """Whether the decay can be told, and not only that the average is fast."""
        return self.is_decisive and self.x < _LARGEST / 2

    @property
    def is_unsaturated(self) -> bool:
        """Whether it is small enough to be compared with others."""
        return self.x < _SATURATED

    def ratio_to(self, x: float) -> float:
        """Return the factor between two numbers of time constants.

        Large ones cannot be told apart.
        """
        return min(self.x, _SATURATED) / min(x, _SATURATED)

    def differs_from(self, x: float, factor: float, log_error: float = 0.0) -> bool:
        """Whether x is off by a factor or more, and by four standard errors.

        Args:
            x: another number of time constants.
            factor: the smallest one that counts.
            log_error: the standard error of ``log x``.
        """
        gap = abs(math.log(self.ratio_to(x)))
        return gap > math.log(factor) and gap > 4 * math.hypot(
            self.log_error, log_error
        )


def coefficients(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``a`` and ``f``."""
    a = -torch.expm1(-x)
    # f = x/2 - x^2/6 + ... loses its digits below 1e-3 otherwise.
    f = torch.where(x < 1e-3, x / 2 - x * x / 6, 1 - a / x)
    return a, f


def products(moved: Tensor, behind: Tensor, drift: Tensor) -> Tensor:
    """Return the inner products of M, L - S and D, one 3 by 3 matrix per chunk."""
    columns = torch.stack([moved, behind, drift], dim=1).double()
    chunks = columns.chunk(min(_CHUNKS, len(columns)))
    return torch.stack([chunk.T @ chunk for chunk in chunks])


def estimate(grams: Tensor) -> DecayEstimate:
    """DecayEstimate x from the matrices of the chunks."""
    total = grams.sum(0)
    moved = float(total[0, 0])
    if not moved or not math.isfinite(moved):
        return DecayEstimate(0.0, 0.0, 1.0)
    x, rest = _best(total)
    logs = [math.log(_best(gram)[0]) for gram in grams if float(gram[0, 0]) > 0]
    return DecayEstimate(x, _error_of_median(logs), 1 - rest / moved)


def _error_of_median(values: Sequence[float]) -> float:
    """Return a standard error that a few outliers do not change."""
    if len(values) < 2:
        return math.inf
    middle = median(values)
    spread = 1.4826 * median(abs(value - middle) for value in values)
    return 1.2533 * spread / math.sqrt(len(values))


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
