"""Learning rate and decay tuned together, for EMA and for Switch EMA."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from switch_ema._checks import check_count
from switch_ema.theory.quadratic import Array, NoisyQuadratic
from switch_ema.theory.reference import check_start

_RATES = np.geomspace(0.01, 1.98, 40)
_WEIGHTS = np.geomspace(0.1, 0.0002, 24)
"""Coarse grid: learning rates times the largest curvature, and values of 1 - d."""
_MINIMA = 3
"""Local minima of the coarse grid that are refined."""
_ROUNDS = 5
"""Refinements of each; every one halves the spacing, in logarithms."""
_LARGEST = 1.99
"""SGD is stable below 2."""


@dataclass(frozen=True)
class TunedAverage:
    """The lowest expected loss of an average, and where it is."""

    loss: float
    rate: float
    """The initial or peak learning rate."""
    decay: float


def final_losses(
    model: NoisyQuadratic,
    start: ArrayLike,
    shape: ArrayLike,
    rates: ArrayLike,
    decays: ArrayLike,
    every: int | None = None,
) -> Array:
    """Return the expected loss of the shadow after all steps: (rates, decays).

    The same recursion as ``periodic.expected_losses``, without momentum, for all
    settings at once.

    Args:
        model: the loss.
        start: the first weights.
        shape: the learning rate of each step as a share of ``rates``.
        rates: initial or peak learning rates.
        decays: of the average.
        every: the interval of switches in steps; None never switches.
    """
    if every is not None:
        check_count("every", every)
    a, basis = np.linalg.eigh(model.curvature)
    g = np.diag(basis.T @ model.gradient_noise @ basis)
    peak = np.asarray(rates, dtype=np.float64)[:, None, None]
    d = np.asarray(decays, dtype=np.float64)[None, :, None]
    first = check_start(model, start) @ basis
    live = np.broadcast_to(first, np.broadcast_shapes(peak.shape, d.shape, a.shape))
    shadow, live_var = live, np.zeros(live.shape)
    both = shadow_var = live_var  # covariance of live and shadow; variance of shadow
    for step, share in enumerate(np.asarray(shape, dtype=np.float64), start=1):
        rate = peak * share
        keep = 1 - rate * a
        live, live_var = keep * live, keep**2 * live_var + rate**2 * g
        shadow = d * shadow + (1 - d) * live
        shadow_var = (
            d**2 * shadow_var + 2 * d * (1 - d) * keep * both + (1 - d) ** 2 * live_var
        )
        both = d * keep * both + (1 - d) * live_var
        if every is not None and step % every == 0:
            live, live_var, both = shadow, shadow_var, shadow_var
    return np.asarray(0.5 * (a * (shadow**2 + shadow_var)).sum(-1))


def tune(
    model: NoisyQuadratic, start: ArrayLike, shape: ArrayLike, every: int | None = None
) -> TunedAverage:
    """Return the learning rate and decay with the lowest final expected loss.

    A coarse grid of both finds the local minima; the three lowest are refined until
    neighbours differ by less than 1%.

    Args:
        model: the loss.
        start: the first weights.
        shape: the learning rate of each step as a share of its peak.
        every: the interval of switches in steps; None is EMA.
    """
    top = float(np.linalg.eigvalsh(model.curvature).max())
    rates, weights = _RATES / top, _WEIGHTS
    losses = final_losses(model, start, shape, rates, 1 - weights, every)
    found = []
    for row, column in _lowest(losses):
        rate, weight = rates[row], weights[column]
        wide, high = rates[1] / rates[0], weights[0] / weights[1]
        for _ in range(_ROUNDS):
            near = np.linspace(-1, 1, 7)
            some = np.minimum(rate * wide**near, _LARGEST / top)
            others = weight * high**near
            local = final_losses(model, start, shape, some, 1 - others, every)
            best = np.unravel_index(np.argmin(local), local.shape)
            rate, weight = some[best[0]], others[best[1]]
            wide, high = wide**0.5, high**0.5
        found.append(TunedAverage(float(local[best]), float(rate), float(1 - weight)))
    return min(found, key=lambda one: one.loss)


def _lowest(losses: Array) -> list[tuple[int, int]]:
    """Return the places of the lowest local minima."""
    padded = np.pad(losses, 1, constant_values=np.inf)
    rows, columns = losses.shape
    around = [padded[i : i + rows, j : j + columns] for i in range(3) for j in range(3)]
    places = np.argwhere(losses <= np.min(around, axis=0))
    order = sorted(places.tolist(), key=lambda place: losses[place[0], place[1]])
    return [(row, column) for row, column in order[:_MINIMA]]
