"""Sharpness measures: curvature, and the loss increase under perturbations.

Every measure takes a ``LossSurface`` and leaves the model and the random state
unchanged. The same seed gives the same numbers.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import normalize

from switch_ema._checks import check_choice, check_count, check_positive
from switch_ema.analysis.sharpness.curvature import LossSurface
from switch_ema.analysis.sharpness.spectrum import (
    Estimate,
    estimate_mean,
    hessian_trace,
    top_eigenvalues,
)

Scale = Literal["none", "parameter", "filter"]
"""Unit of the noise on a weight."""


@dataclass(frozen=True)
class WorstCase:
    """The highest loss found in a region around the weights."""

    increase: float
    """Rise of the loss; a lower bound, since the ascent may miss the highest point."""
    percent: float
    """The rise in percent of one plus the loss at the weights (Keskar et al., 2017)."""


@dataclass(frozen=True)
class NoiseCurve:
    """Mean loss increase under noise of growing strength, with common draws."""

    scale: str
    """Unit of the strength; see ``loss_under_noise``."""
    sigmas: tuple[float, ...]
    increases: tuple[Estimate, ...]


@dataclass(frozen=True)
class Sharpness:
    """All measures of one model; larger means sharper."""

    loss: float
    gradient_norm: float
    eigenvalues: tuple[float, ...]
    """Largest eigenvalues of the Hessian, in descending order."""
    trace: Estimate
    """Trace of the Hessian."""
    box: WorstCase
    ball: WorstCase
    ascent_gap: float
    noise: Estimate
    """Loss increase under noise of the same strength for all weights."""
    relative_noise: Estimate
    """Loss increase under noise relative to the filters."""


def measure_sharpness(
    surface: LossSurface,
    *,
    count: int = 5,
    trace_draws: int | None = 16,
    epsilon: float = 1e-3,
    rho: float = 0.05,
    sigma: float = 0.01,
    relative_sigma: float = 0.1,
    draws: int = 16,
    seed: int = 0,
) -> Sharpness:
    """Measure one model in every way, for a table of methods.

    Args:
        surface: The same batches for all methods that are compared.
        count: Number of eigenvalues.
        trace_draws: Random vectors for the trace; None for the exact one.
        epsilon: Half width of the box around a weight ``w``, times ``|w| + 1``.
        rho: Radius of the ball, and length of the step of ascent.
        sigma: Standard deviation of the noise on every weight.
        relative_sigma: Standard deviation of the noise relative to the filters.
        draws: Draws of either noise, each used with both signs.
        seed: Random seed.
    """
    loss, gradient = surface.gradient()
    return Sharpness(
        loss=loss,
        gradient_norm=gradient.norm().item(),
        eigenvalues=top_eigenvalues(surface, count, seed=seed),
        trace=hessian_trace(surface, trace_draws, seed=seed),
        box=worst_case(surface, epsilon, region="box", seed=seed),
        ball=worst_case(surface, rho, region="ball", seed=seed),
        ascent_gap=ascent_gap(surface, rho),
        noise=loss_under_noise(surface, sigma, draws=draws, seed=seed),
        relative_noise=loss_under_noise(
            surface, relative_sigma, scale="filter", draws=draws, seed=seed
        ),
    )


def ascent_gap(surface: LossSurface, rho: float = 0.05) -> float:
    """Return ``L(w + rho * g / |g|) - L(w)``, which SAM keeps low (Foret et al., 2021).

    The gap at a stationary point, where the gradient ``g`` is zero, is zero.
    """
    check_positive("rho", rho)
    loss, gradient = surface.gradient()
    norm = gradient.norm()
    if norm == 0:
        return 0.0
    return surface.value(surface.weights + gradient * (rho / norm)) - loss


def worst_case(
    surface: LossSurface,
    epsilon: float = 1e-3,
    *,
    region: Literal["box", "ball"] = "box",
    steps: int = 20,
    seed: int = 0,
) -> WorstCase:
    """Find the highest loss around the weights by projected gradient ascent.

    Starts next to the weights in a random direction, because the gradient vanishes at a
    minimum. Steps grow after a success and shrink after a failure.

    Args:
        surface: The loss.
        epsilon: Size of the region.
        region: "box" is ``|z| <= epsilon * (|w| + 1)`` weight by weight (Keskar et al.,
            2017), "ball" is ``|z| <= epsilon`` for the norm of all weights together.
        steps: Gradient evaluations.
        seed: Seed of the starting direction.
    """
    check_positive("epsilon", epsilon)
    check_choice("region", region, ("box", "ball"))
    check_count("steps", steps)
    weights, norm = surface.weights, math.inf if region == "box" else 2.0
    # Search the norm's unit ball: z = extent * u.
    extent = epsilon * (weights.abs() + 1 if region == "box" else 1.0)
    base = surface.value()
    start = _noise(surface, torch.Generator().manual_seed(seed))
    best = start * (0.01 / start.norm(norm))
    highest, slope = surface.gradient(weights + extent * best)
    length = 1.0
    for _ in range(steps):
        trial = _climb(best, extent * slope, length, norm)
        loss, trial_slope = surface.gradient(weights + extent * trial)
        if loss > highest:
            best, highest, slope = trial, loss, trial_slope
            length *= 2
        else:
            length /= 4
    increase = max(highest - base, 0.0)
    return WorstCase(increase, 100 * increase / (1 + base))


def loss_under_noise(
    surface: LossSurface,
    sigma: float = 0.01,
    *,
    scale: Scale = "none",
    draws: int = 16,
    seed: int = 0,
) -> Estimate:
    """Estimate the mean loss increase under Gaussian noise on the weights.

    To second order it is ``sigma**2 / 2`` times the trace of the Hessian if the noise
    has no scale. Each draw is used with both signs, which cancels the gradient.

    Args:
        surface: The loss.
        sigma: Standard deviation of the noise, in units of the scale.
        scale: "none", "parameter" (each weight's own size) or "filter" (root mean
            square of the weights that feed the same output; a bias is on its own).
        draws: At least 2.
        seed: Of the noise.
    """
    curve = noise_curve(surface, (sigma,), scale=scale, draws=draws, seed=seed)
    return curve.increases[0]


def noise_curve(
    surface: LossSurface,
    sigmas: Sequence[float],
    *,
    scale: Scale = "filter",
    draws: int = 16,
    seed: int = 0,
) -> NoiseCurve:
    """Estimate the loss increase for several noise strengths, with common draws."""
    for sigma in sigmas:
        check_positive("sigma", sigma)
    check_choice("scale", scale, ("none", "parameter", "filter"))
    check_count("draws", draws, 2)
    weights, base = surface.weights, surface.value()
    unit = _scales(surface, weights, scale)
    generator = torch.Generator().manual_seed(seed)
    increases: list[list[float]] = [[] for _ in sigmas]
    for _ in range(draws):
        noise = unit * _noise(surface, generator)
        for found, sigma in zip(increases, sigmas, strict=True):
            both = [surface.value(weights + sign * noise) for sign in (sigma, -sigma)]
            found.append(fmean(both) - base)
    means = tuple(estimate_mean(found) for found in increases)
    return NoiseCurve(scale, tuple(sigmas), means)


def _climb(point: Tensor, slope: Tensor, length: float, norm: float) -> Tensor:
    """Take the steepest step of a length and project onto the norm's unit ball."""
    if norm == math.inf:
        return (point + length * slope.sign()).clamp(-1, 1)
    moved = point + normalize(slope, dim=0, eps=torch.finfo(slope.dtype).tiny) * length
    return moved / max(1.0, float(moved.norm()))


def _scales(surface: LossSurface, weights: Tensor, scale: str) -> Tensor:
    if scale == "none":
        return torch.ones_like(weights)
    if scale == "parameter":
        return weights.abs()
    sizes = []
    for piece in surface.pieces(weights):
        rows = piece.reshape(len(piece), -1) if piece.ndim else piece.reshape(1, 1)
        size = rows.square().mean(1, keepdim=True).sqrt()
        sizes.append(size.expand_as(rows).reshape(-1))
    return torch.cat(sizes)


def _noise(surface: LossSurface, generator: torch.Generator) -> Tensor:
    """Draw on the CPU, so all devices get the same numbers."""
    drawn = torch.randn(surface.size, dtype=torch.float64, generator=generator)
    return drawn.to(surface.device, surface.dtype)
