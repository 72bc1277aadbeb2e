"""Exact moments by products of whole matrices: slow and obviously correct.

The oracle of ``periodic``, and its fallback where curvature and noise do not commute.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from switch_ema.theory.quadratic import (
    Array,
    NoisyQuadratic,
    SwitchSettings,
    solve_stationary,
    step_matrices,
)


@dataclass(frozen=True, eq=False)
class Moments:
    """Mean (3, n) and covariance (3, 3, n, n) of live weights, velocity and shadow."""

    mean: Array
    covariance: Array

    @property
    def live(self) -> Array:
        """The covariance of the live weights."""
        return np.asarray(self.covariance[0, 0])

    @property
    def shadow(self) -> Array:
        """The covariance of the shadow."""
        return np.asarray(self.covariance[2, 2])


def dense_moments(
    model: NoisyQuadratic, settings: SwitchSettings, rates: Array, start: ArrayLike
) -> Iterator[Moments]:
    """Yield the moments from step 0, by products of whole matrices."""
    n = model.size
    first = check_start(model, start)
    mean = np.concatenate([first, np.zeros(n), first])
    return _dense_run(model, settings, rates, mean, np.zeros((3 * n, 3 * n)))


def dense_steady_state(
    model: NoisyQuadratic, settings: SwitchSettings, rates: ArrayLike, phase: int = 0
) -> Moments:
    """Return the steady moments by products of whole matrices."""
    cycle = one_period(settings, rates)
    zero = np.zeros(3 * model.size)
    # Starting without spread, one period leaves just its own noise.
    added = final(dense_moments(model, settings, cycle, np.zeros(model.size)))
    period = np.eye(len(zero))
    for step, rate in enumerate(cycle, start=1):
        period = _with_switch(model.curvature, settings, rate, step)[0] @ period
    first = solve_stationary(period, _stack(added.covariance))
    return final(_dense_run(model, settings, cycle[:phase], zero, first))


def one_period(settings: SwitchSettings, rates: ArrayLike) -> Array:
    """Return the learning rates of one period; see ``steady_state``."""
    period = settings.every or 1
    cycle = np.asarray(rates, dtype=np.float64)
    cycle = np.full(period, cycle) if cycle.ndim == 0 else cycle
    if len(cycle) == 0 or len(cycle) % period:
        raise ValueError(
            f"rates must be one number or a multiple of the interval {period} of "
            f"them, got {len(cycle)}."
        )
    return cycle


def check_start(model: NoisyQuadratic, start: ArrayLike) -> Array:
    """Return the initial weights as an array, checked against the model."""
    weights = np.asarray(start, dtype=np.float64)
    if weights.shape != (model.size,):
        raise ValueError(
            f"start must have the shape ({model.size},) of the model's weights, "
            f"got {weights.shape}."
        )
    return weights


def _with_switch(
    curvature: Array, settings: SwitchSettings, rate: float, step: int
) -> tuple[Array, Array]:
    matrix, noise = step_matrices(curvature, float(rate), settings)
    if settings.switches_after(step):
        n = len(curvature)
        for rows in (matrix, noise):
            rows[:n] = rows[2 * n :]
            if settings.reset_momentum:
                rows[n : 2 * n] = 0
    return matrix, noise


def _dense_run(
    model: NoisyQuadratic,
    settings: SwitchSettings,
    rates: Array,
    mean: Array,
    covariance: Array,
) -> Iterator[Moments]:
    yield _unstack(mean, covariance)
    for step, rate in enumerate(rates, start=1):
        matrix, noise = _with_switch(model.curvature, settings, rate, step)
        mean = matrix @ mean
        covariance = matrix @ covariance @ matrix.T
        covariance += noise @ model.gradient_noise @ noise.T
        yield _unstack(mean, covariance)


def _stack(blocks: Array) -> Array:
    size = 3 * blocks.shape[2]
    return blocks.swapaxes(1, 2).reshape(size, size)


def _unstack(mean: Array, covariance: Array) -> Moments:
    n = len(mean) // 3
    blocks = covariance.reshape(3, n, 3, n).swapaxes(1, 2)
    return Moments(mean.reshape(3, n), blocks)


def final(states: Iterable[Moments]) -> Moments:
    """Return the last of the moments."""
    *_, state = states
    return state
