"""Averaging profiles: the weight of each past step, and fitting a wanted profile.

Every average at step ``t`` is a weighted sum of the live weights of the steps
``s = 1..t``; the weights over ``s`` are its profile. Power-function averages have

    w(s) = (s / t) ** (gamma + 1) - ((s - 1) / t) ** (gamma + 1),

which is exact, not a continuous limit: it sums to 1 and equals the step-by-step average
with ``beta_t = (1 - 1/t) ** (gamma + 1)``. Their width is given as ``sigma_rel``, the
standard deviation as a share of the training so far
(Karras et al., 2024, https://arxiv.org/abs/2312.02696).
"""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from switch_ema._checks import check_count, check_range, check_share
from switch_ema.averaging.schedules.windows import sigma_rel_to_gamma

Profile = Callable[[Tensor, int], Tensor]
"""``profile(steps, t)``: weights at some of the steps 1..t, up to a common factor."""

_BLOCK = 1 << 21
"""Numbers held in memory while comparing profiles (16 MB in float64)."""

_RTOL = 1e-14
"""Eigenvalues below this share of the largest one are float64 rounding errors."""


def power_profile(sigma_rel: float) -> Profile:
    """Return the profile of a power-function average.

    Args:
        sigma_rel: width of the profile as a share of the training, in (0, 0.2886].
    """
    power = sigma_rel_to_gamma(sigma_rel) + 1
    return lambda steps, t: (steps / t) ** power - ((steps - 1) / t) ** power


def exponential_profile(decay: float) -> Profile:
    """Return the profile ``decay ** (t - s)`` of an EMA with constant decay in [0, 1).

    An EMA also gives its initial value the weight ``decay ** t``. No snapshot contains
    the weights before the first step, so this share is spread over the steps 1..t; it
    is negligible after a few times ``1 / (1 - decay)`` steps.

    Args:
        decay: weight of the old average, in [0, 1).
    """
    decay = check_range("decay", decay, 0, 1)
    return lambda steps, t: decay ** (t - steps)


def uniform_profile(last: int) -> Profile:
    """Return the profile of the mean over the last steps.

    Args:
        last: number of steps; all, if there are fewer.
    """
    check_count("last", last)
    return lambda steps, t: (steps > t - last).to(steps.dtype)


Curve = Callable[[Tensor], Tensor]
"""Learning rate relative to its peak, as a function of the progress in [0, 1]."""

DECAYS: dict[str, Curve] = {
    "linear": lambda progress: 1 - progress,
    "minus-sqrt": lambda progress: 1 - progress.sqrt(),
    "cosine": lambda progress: (1 + (math.pi * progress).cos()) / 2,
}
"""Learning-rate decays from 1 to 0, by name."""


def decay_profile(curve: Curve) -> Profile:
    """Return the profile that is equivalent to a learning-rate decay.

    Scaling the updates of a constant learning rate by a falling curve w ends at the
    average with weights ``w((s - 1) / t) - w(s / t)`` (WSM, Tian et al., 2025,
    https://arxiv.org/abs/2507.17634). A linear decay corresponds to the mean.

    Args:
        curve: w, a function of the progress in [0, 1] (a tensor), from 1 down to 0.
    """
    return lambda steps, t: curve((steps - 1) / t) - curve(steps / t)


def decay_weights(values: Sequence[float]) -> list[float]:
    """Return the weights of n checkpoints for the n - 1 values w of a decay.

    ``w[j]`` is the relative learning rate between the checkpoints j and j + 1. The
    weights are ``1 - w[0]``, then ``w[j - 1] - w[j]``, and finally ``w[n - 2]``.

    Args:
        values: w, each in [0, 1] and none larger than the one before.

    >>> decay_weights([0.75, 0.25])
    [0.25, 0.5, 0.25]
    """
    curve = [1.0, *(check_share("decay", value) for value in values), 0.0]
    weights = [before - after for before, after in pairwise(curve)]
    if min(weights) < 0:
        raise ValueError(f"decay must not rise, got {list(values)}.")
    return weights


def profile_weights(profile: Profile, count: int) -> list[float]:
    """Return the weights of ``count`` checkpoints, oldest first; they sum to 1."""
    steps = torch.arange(1, count + 1, dtype=torch.float64)
    weights = _evaluate(profile, steps, count)
    total = weights.sum().item()
    if not total > 0:
        raise ValueError(f"profile must have weights with a sum above 0, got {total}.")
    return (weights / total).tolist()


class PowerAverage(NamedTuple):
    """A power-function average with exponent ``gamma``, stored at ``step``."""

    step: int
    gamma: float


def solve(
    stored: Sequence[PowerAverage], profile: Profile, step: int, noise: float
) -> tuple[list[float], float]:
    """Find the combination of stored averages whose profile is closest to a wanted one.

    With the stored profiles as columns of W and p the wanted one, minimise

        |W c - p|**2 / |p|**2 + noise**2 * |c|**2    subject to sum(c) = 1.

    The constraint keeps parameters that training does not move where they are, however
    bad the fit. The second term is the rounding error of the stored weights, which
    narrow targets would otherwise amplify with coefficients in the hundreds.

    Args:
        stored: at least one average, sorted by step, none later than ``step``.
        profile: the wanted profile.
        step: the step ``t`` of the wanted profile.
        noise: relative precision of the stored numbers, such as 2**-24 for float32.

    Returns:
        The coefficients ``c``, and the relative error ``|W c - p| / |p|``, which
        float64 resolves down to about 1e-8.
    """
    gram, inner, square = _inner_products(stored, profile, step)
    identity = torch.eye(len(stored), dtype=torch.float64)
    matrix = gram / square + noise**2 * identity
    # c = (0, ..., 0, 1) + basis @ free, where the columns of the basis sum to 0.
    basis = identity[:, :-1] - identity[:, -1:]
    normal = basis.T @ matrix @ basis
    aim = basis.T @ (inner / square - matrix[:, -1])
    free = torch.linalg.pinv(normal, rtol=_RTOL, hermitian=True) @ aim
    coefficients = identity[:, -1] + basis @ free
    missed = coefficients @ gram @ coefficients - 2 * coefficients @ inner + square
    return coefficients.tolist(), math.sqrt(max(missed.item() / square, 0.0))


def _inner_products(
    stored: Sequence[PowerAverage], profile: Profile, step: int
) -> tuple[Tensor, Tensor, float]:
    """Return ``W'W``, ``W'p`` and ``p'p``, summed over blocks that fit into memory."""
    ends = torch.tensor([average.step for average in stored], dtype=torch.float64)
    powers = torch.tensor([average.gamma + 1 for average in stored], dtype=ends.dtype)
    size = len(stored)
    gram = torch.zeros(size, size, dtype=torch.float64)
    inner = torch.zeros(size, dtype=torch.float64)
    square = total = 0.0
    rows = max(_BLOCK // size, 1)
    for before in range(0, step, rows):
        edges = torch.arange(before, min(before + rows, step) + 1, dtype=torch.float64)
        ended = int((ends <= before).sum())  # these have no weight from here on
        shares = (edges[:, None] / ends[ended:]).clamp_(max=1).pow_(powers[ended:])
        weights = shares.diff(dim=0)
        wanted = _evaluate(profile, edges[1:], step)
        gram[ended:, ended:] += weights.T @ weights
        inner[ended:] += weights.T @ wanted
        square += (wanted @ wanted).item()
        total += wanted.sum().item()
    if not total > 0:
        raise ValueError(f"profile must have weights with a sum above 0, got {total}.")
    return gram, inner / total, square / total**2


def _evaluate(profile: Profile, steps: Tensor, t: int) -> Tensor:
    weights = profile(steps, t)
    if not isinstance(weights, Tensor) or weights.shape != steps.shape:
        got = list(weights.shape) if isinstance(weights, Tensor) else type(weights)
        raise ValueError(
            "profile(steps, t) must return a tensor with one weight per step, of shape "
            f"{list(steps.shape)}, got {got}."
        )
    if not bool(weights.isfinite().all()):
        raise ValueError("profile must have finite weights, got NaN or infinity.")
    return weights.to(torch.float64)
