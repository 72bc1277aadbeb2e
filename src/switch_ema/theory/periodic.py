"""Exact means and covariances of Switch EMA for any interval; beyond the paper.

Live weights, velocity and shadow follow a linear recursion with additive noise, so
their mean and covariance do too. The fast path solves a separate problem of three
numbers for each eigenvector of the curvature; ``reference`` does the same on whole
matrices, which covariances need where curvature and noise do not commute. Expected
losses need only the noise along each eigenvector, so the fast path is always exact for
them.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from switch_ema.theory.quadratic import (
    Array,
    NoisyQuadratic,
    SwitchSettings,
    solve_stationary,
)
from switch_ema.theory.reference import (
    Moments,
    check_start,
    dense_moments,
    dense_steady_state,
    final,
    one_period,
)

_COMMUTES = 1e-12  # relative noise between eigenvectors that counts as rounding


@dataclass(frozen=True, eq=False)
class Losses:
    """Expected losses; entry ``t`` is after ``t`` steps and the switch, if any."""

    live: Array
    shadow: Array


def moments(
    model: NoisyQuadratic, settings: SwitchSettings, rates: Array, start: ArrayLike
) -> Moments:
    """Return mean and covariance after all steps, by the fastest exact method."""
    modes = _Modes.of(model, start)
    if not modes.is_complete:
        return final(dense_moments(model, settings, rates, start))
    for state in modes.run(settings, rates):
        mean, covariance = state
    return modes.in_weights(mean, covariance)


def expected_losses(
    model: NoisyQuadratic, settings: SwitchSettings, rates: Array, start: ArrayLike
) -> Losses:
    """Return the expected loss of live weights and shadow, from step 0 on."""
    parts = mode_losses(model, settings, rates, start)
    return Losses(parts.live.sum(1), parts.shadow.sum(1))


def mode_losses(
    model: NoisyQuadratic, settings: SwitchSettings, rates: Array, start: ArrayLike
) -> Losses:
    """Return each eigenvector's part of the expected loss: (steps + 1, n)."""
    modes = _Modes.of(model, start)
    squares = np.array(
        [mean**2 + c[:, [0, 1, 2], [0, 1, 2]] for mean, c in modes.run(settings, rates)]
    )
    parts = 0.5 * modes.curvatures[:, None] * squares
    return Losses(parts[..., 0], parts[..., 2])


def steady_state(
    model: NoisyQuadratic, settings: SwitchSettings, rates: ArrayLike, phase: int = 0
) -> Moments:
    """Return the moments that repeat every period, ``phase`` steps into it.

    Args:
        model: the loss.
        settings: decay, momentum, interval.
        rates: one learning rate, or those of one period, which is then a multiple of
            the interval.
        phase: 0 is after the last step of a period and its switch.

    Raises:
        ValueError: there is no steady state, or the period does not fit.
    """
    cycle = one_period(settings, rates)
    if not 0 <= phase <= len(cycle):
        raise ValueError(f"phase must be in [0, {len(cycle)}], got {phase}.")
    modes = _Modes.of(model, np.zeros(model.size))
    if not modes.is_complete:
        return dense_steady_state(model, settings, cycle, phase)
    first = modes.steady_covariance(settings, cycle)
    for state in modes.run(settings, cycle[:phase], first):
        mean, covariance = state
    return modes.in_weights(mean, covariance)


def steady_losses(
    model: NoisyQuadratic, settings: SwitchSettings, rates: ArrayLike
) -> Losses:
    """Return the expected losses over one steady period, by phase from 0 to T."""
    cycle = one_period(settings, rates)
    modes = _Modes.of(model, np.zeros(model.size))
    first = modes.steady_covariance(settings, cycle)
    variances = np.array([c for _, c in modes.run(settings, cycle, first)])
    live, shadow = variances[:, :, 0, 0], variances[:, :, 2, 2]
    return Losses(live @ modes.curvatures / 2, shadow @ modes.curvatures / 2)


def contraction(
    model: NoisyQuadratic, settings: SwitchSettings, rates: ArrayLike
) -> float:
    """Return the contraction per step of the slowest part of the mean."""
    cycle = one_period(settings, rates)
    periods = _Modes.of(model, np.zeros(model.size)).period(settings, cycle)
    radius = np.abs(np.linalg.eigvals(periods)).max()
    return float(radius ** (1 / len(cycle)))


@dataclass(frozen=True, eq=False)
class _Modes:
    """The model in the eigenbasis of its curvature."""

    curvatures: Array
    basis: Array
    noise: Array
    start: Array
    is_complete: bool
    """Whether the noise is independent between eigenvectors."""

    @classmethod
    def of(cls, model: NoisyQuadratic, start: ArrayLike) -> "_Modes":
        first = check_start(model, start)
        curvatures, basis = np.linalg.eigh(model.curvature)
        noise = basis.T @ model.gradient_noise @ basis
        rest = np.abs(noise - np.diag(np.diag(noise))).max()
        return cls(
            curvatures,
            basis,
            np.diag(noise).copy(),
            first @ basis,
            bool(rest <= _COMMUTES * np.abs(noise).max()),
        )

    def run(
        self, settings: SwitchSettings, rates: Array, covariance: Array | None = None
    ) -> Iterator[tuple[Array, Array]]:
        """Yield means (n, 3) and covariances (n, 3, 3) from step 0 on."""
        n = len(self.curvatures)
        mean = np.stack([self.start, np.zeros(n), self.start], axis=1)
        covariance = np.zeros((n, 3, 3)) if covariance is None else covariance
        yield mean, covariance
        for matrix, noise in self._steps(settings, rates):
            mean = (matrix @ mean[..., None])[..., 0]
            covariance = matrix @ covariance @ matrix.swapaxes(1, 2) + noise
            yield mean, covariance

    def _steps(
        self, settings: SwitchSettings, rates: Array
    ) -> Iterator[tuple[Array, Array]]:
        """Yield the matrices of each step; equal steps share theirs."""
        known: dict[tuple[float, bool], tuple[Array, Array]] = {}
        for step, rate in enumerate(rates, start=1):
            key = float(rate), settings.switches_after(step)
            if key not in known:
                known[key] = self._one_step(settings, rate, step)
            yield known[key]

    def _one_step(
        self, settings: SwitchSettings, rate: float, step: int
    ) -> tuple[Array, Array]:
        """Return what ``step_matrices`` and the switch do, for all modes at once."""
        new, momentum = 1 - settings.decay, settings.momentum
        matrix = np.zeros((len(self.curvatures), 3, 3))
        matrix[:, 1, 0], matrix[:, 1, 1] = self.curvatures, momentum
        matrix[:, 0] = -rate * matrix[:, 1]
        matrix[:, 0, 0] += 1
        matrix[:, 2] = new * matrix[:, 0]
        matrix[:, 2, 2] += settings.decay
        spread = np.array([-rate, 1, -new * rate])
        if settings.switches_after(step):
            matrix[:, 0], spread[0] = matrix[:, 2], spread[2]
            if settings.reset_momentum:
                matrix[:, 1], spread[1] = 0, 0
        return matrix, self.noise[:, None, None] * np.outer(spread, spread)

    def period(self, settings: SwitchSettings, cycle: Array) -> Array:
        """Return the matrices (n, 3, 3) of one whole period."""
        product = np.broadcast_to(np.eye(3), (len(self.noise), 3, 3))
        for matrix, _ in self._steps(settings, cycle):
            product = matrix @ product
        return product

    def steady_covariance(self, settings: SwitchSettings, cycle: Array) -> Array:
        """Return the covariances (n, 3, 3) that one period reproduces."""
        for state in self.run(settings, cycle):
            _, added = state
        pairs = zip(self.period(settings, cycle), added, strict=True)
        return np.array([solve_stationary(period, noise) for period, noise in pairs])

    def in_weights(self, mean: Array, covariance: Array) -> Moments:
        basis = self.basis
        blocks = np.einsum("im,mab,jm->abij", basis, covariance, basis)
        return Moments((basis @ mean).T, blocks)
