"""The Hessian's spectrum: its largest eigenvalues and its trace.

The same seed gives the same numbers; the global generators are not used.
"""

import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator, eigsh  # type: ignore[import-untyped]

from switch_ema._checks import check_count
from switch_ema.analysis.sharpness.curvature import LossSurface, hessian_matrix

_COLUMNS = 64  # columns of the Hessian at a time, to limit the memory of an exact trace


@dataclass(frozen=True)
class Estimate:
    """A mean over random draws."""

    mean: float
    error: float
    """Standard error of the mean; 0 if exact."""
    draws: int
    """0 if exact."""


def estimate_mean(values: Sequence[float]) -> Estimate:
    """Return the mean of at least two draws with its standard error.

    >>> estimate_mean([1.0, 3.0])
    Estimate(mean=2.0, error=1.0, draws=2)
    """
    drawn = torch.tensor(values, dtype=torch.float64)  # may hold infinite ones
    error = drawn.std().item() / math.sqrt(len(values))
    return Estimate(drawn.mean().item(), error, len(values))


def top_eigenvalues(
    surface: LossSurface, count: int = 5, *, seed: int = 0
) -> tuple[float, ...]:
    """Return the largest eigenvalues of the Hessian, in descending order.

    Computed by restarted Lanczos iteration, or from the whole Hessian if that is
    cheaper. A model with fewer parameters than ``count`` returns all eigenvalues.
    """
    check_count("count", count)
    if surface.size <= max(2 * count + 1, 20):
        values = torch.linalg.eigvalsh(hessian_matrix(surface).double()).tolist()
    else:
        values = _lanczos(surface, count, seed).tolist()
    return tuple(sorted(values, reverse=True)[:count])


def hessian_trace(
    surface: LossSurface, draws: int | None = 16, *, seed: int = 0
) -> Estimate:
    """Estimate the trace of the Hessian by Hutch++ (Meyer et al., 2021).

    With an orthonormal basis ``Q`` of the Hessian's range on ``draws`` random vectors,
    the trace inside the basis is exact, and the rest ``P = I - Q Q'`` is estimated::

        tr(H) = tr(Q' H Q) + mean of g' P H P g      g of random signs

    Takes three products per draw, and is exact where that costs no more.

    Args:
        surface: The loss.
        draws: None for the exact trace, which takes one product per parameter.
        seed: Seed of the random vectors.
    """
    if draws is None or 3 * check_count("draws", draws, 2) >= surface.size:
        return Estimate(_exact_trace(surface), 0.0, 0)
    generator = torch.Generator().manual_seed(seed)
    signs = torch.randint(0, 2, (2, surface.size, draws), generator=generator) * 2 - 1
    sketch, probes = signs.to(surface.device, surface.dtype)
    basis = torch.linalg.qr(surface.hessian_product(sketch)).Q
    inside = (basis * surface.hessian_product(basis)).sum().item()
    probes -= basis @ (basis.T @ probes)
    outside = (probes * surface.hessian_product(probes)).sum(0).tolist()
    rest = estimate_mean(outside)
    return Estimate(inside + rest.mean, rest.error, draws)


def _lanczos(surface: LossSurface, count: int, seed: int) -> Any:
    """Run ARPACK in float64, whatever the model's dtype."""

    def product(vector: Any) -> Any:
        column = torch.from_numpy(vector.reshape(-1)).to(surface.device, surface.dtype)
        return surface.hessian_product(column).double().cpu().numpy()

    rng = np.random.default_rng(seed)
    start = rng.standard_normal(surface.size)
    if not product(start).any():  # ARPACK rejects a zero Hessian
        return np.zeros(count)
    # Newer SciPy versions restart from their own random vector.
    extra = {"rng": rng} if "rng" in inspect.signature(eigsh).parameters else {}
    return eigsh(
        LinearOperator((surface.size,) * 2, matvec=product, dtype=np.float64),
        k=count,
        which="LA",
        v0=start,
        # Products have the model's rounding error, so no tighter tolerance is possible.
        tol=math.sqrt(torch.finfo(surface.dtype).eps),
        return_eigenvectors=False,
        **extra,
    )


def _exact_trace(surface: LossSurface) -> float:
    total = 0.0
    for start in range(0, surface.size, _COLUMNS):
        rows = range(start, min(start + _COLUMNS, surface.size))
        columns = torch.zeros(
            surface.size, len(rows), dtype=surface.dtype, device=surface.device
        )
        columns[rows, range(len(rows))] = 1
        total += (columns * surface.hessian_product(columns)).sum().item()
    return total
