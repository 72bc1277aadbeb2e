"""The paper's three propositions: claims against measurements.

In this project's notation (decay ``d`` weights the OLD average; ``h`` is learning rate
times curvature):

1. The SEMA of Proposition 1 is just SGD with its learning rate scaled by ``1 - d``.
   ``V_EMA < V_SGD`` holds for every stable ``h``; ``V_SEMA < V_EMA`` holds for
   ``h < 1`` and for ``h > 1 + d``, and is reversed in between.
2. SEMA's step follows the gradient at SEMA's own weights. The proposition states it
   for the gradient at SGD's weights, which is true of the first step only.
3. The statement orders the bounds SEMA < EMA < SGD, its proof ends with SEMA < SGD <
   EMA. They contradict each other, and ordering upper bounds does not order errors.
"""

from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import ArrayLike

from switch_ema._checks import check_range
from switch_ema.theory.periodic import expected_losses, steady_losses
from switch_ema.theory.quadratic import (
    Array,
    NoisyQuadratic,
    SwitchSettings,
    stationary,
)
from switch_ema.theory.simulation import (
    State,
    constant_rates,
    gradient_noise,
    literal_steps,
    switch_ema_steps,
)

_ROUNDING = 1e-9  # smaller relative differences count as rounding


@dataclass(frozen=True)
class Verdict:
    """One claim: ``holds`` is whether ``measured`` supports ``claimed``."""

    proposition: int
    claim: str
    claimed: float
    measured: float
    holds: bool


def reversed_range(decay: float) -> tuple[float, float]:
    """Return the open range of ``h`` where ``V_SEMA > V_EMA`` in Proposition 1.

    ``V_SEMA / V_EMA - 1`` has the sign of ``-(h - 1) (h - 1 - d)``.
    """
    return 1.0, 1.0 + check_range("decay", decay, 0, 1)


def proposition_1(model: NoisyQuadratic, rate: float, decay: float) -> list[Verdict]:
    """Compare stationary losses; each claim is a ratio below 1."""
    found = stationary(model, rate, decay)
    scaled = stationary(model, rate * (1 - decay), decay)
    zero = np.zeros(model.size)
    sgd, ema, sema, slow_sgd = (
        model.expected_loss(zero, covariance)
        for covariance in (found.sgd, found.ema, found.sema, scaled.sgd)
    )
    equal = bool(np.allclose(found.sema, scaled.sgd, rtol=_ROUNDING, atol=0))
    return [
        _below(1, "EMA / SGD", 1, ema / sgd),
        _below(1, "SEMA / EMA", 1, sema / ema),
        Verdict(1, "SEMA = SGD at (1-d) rate", 1, sema / slow_sgd, equal),
    ]


def proposition_2(
    model: NoisyQuadratic,
    rate: float,
    decay: float,
    every: int,
    start: ArrayLike,
    *,
    steps: int = 200,
    seed: int = 0,
) -> list[Verdict]:
    """Simulate one chain per method with the same noise.

    Claimed and measured values are the smallest cosine, over all steps, between a step
    and the stated direction; 1 is exact proportionality.
    """
    noise = np.array([xi[0] for xi in islice(gradient_noise(model, 1, seed), steps)])
    rates = constant_rates(rate, steps)
    first = np.asarray(start, dtype=np.float64)

    def played(every: int | None) -> list[State]:
        settings = SwitchSettings(decay=decay, every=every)
        return list(switch_ema_steps(model, settings, rates, first, noise))

    def worst(path: Array, at: Array) -> float:
        """Return the smallest cosine of the path's steps with ``-gradient(at)``."""
        gradients = at[:-1] @ model.curvature + noise
        return _smallest_cosine(np.diff(path, axis=0), -gradients)

    plain = played(None)
    sgd = np.array([first, *(state.live for state in plain)])
    ema = np.array([first, *(state.shadow for state in plain)])
    shadow = np.array([first, *(state.shadow for state in played(every))])
    literal = literal_steps(model, decay, None, rates, first, noise)
    sema = np.array([first, *(state.live for state in literal)])
    sums = _decayed_sums(sgd[:-1] @ model.curvature + noise, decay)
    along_past = _smallest_cosine(np.diff(ema, axis=0), -sums)
    return [
        _along("SEMA's step, gradient at SGD (as stated)", worst(sema, sgd)),
        _along("SEMA's step, gradient at SEMA (as proved)", worst(sema, sema)),
        _along("EMA's step, gradient at EMA", worst(ema, ema), claimed=False),
        _along("EMA's step, decayed sum of SGD's gradients", along_past),
        _along("Switch EMA's shadow, gradient at shadow", worst(shadow, shadow)),
    ]


@dataclass(frozen=True)
class Bounds:
    """Proposition 3 for one setting: upper bounds and the errors they bound."""

    sgd: float
    """The bound of SGD, ``rate * L * M / (2 C)``."""
    ema: float
    """The bound of EMA with the proofs' notation: ``d`` times that of SGD."""
    ema_tables: float
    """The same with the tables' notation: ``1 - d`` times that of SGD."""
    sema: float
    """The bound of SEMA as stated, SGD's over sigma; NaN unless sigma is positive."""
    sigma: float
    """The gain of the first switch, measured."""
    errors: tuple[float, float, float]
    """Steady expected losses of SGD, EMA and Switch EMA (its shadow, at a switch)."""


def bounds(
    model: NoisyQuadratic, rate: float, decay: float, every: int, start: ArrayLike
) -> Bounds:
    """Compute the bounds of Proposition 3, and the errors exactly.

    For the quadratic: ``L`` and ``C`` are the largest and smallest curvature, ``mu``
    is 1, and ``M`` is the trace of the gradient noise. The source of the bound asks
    for ``rate <= 1 / L``.
    """
    curvatures = np.linalg.eigvalsh(model.curvature)
    largest, smallest = float(curvatures[-1]), float(curvatures[0])
    if rate * largest > 1:
        raise ValueError(
            f"rate must be at most 1 / the largest curvature = {1 / largest:g} for "
            f"the bound of SGD, got {rate:g}."
        )
    bound = rate * largest * float(np.trace(model.gradient_noise)) / (2 * smallest)
    sigma = measured_sigma(model, rate, decay, every, start)
    plain = steady_losses(model, SwitchSettings(decay=decay), rate)
    switched = steady_losses(model, SwitchSettings(decay=decay, every=every), rate)
    return Bounds(
        bound,
        decay * bound,
        (1 - decay) * bound,
        bound / sigma if sigma > 0 else float("nan"),
        sigma,
        (float(plain.live[-1]), float(plain.shadow[-1]), float(switched.shadow[-1])),
    )


def measured_sigma(
    model: NoisyQuadratic, rate: float, decay: float, every: int, start: ArrayLike
) -> float:
    """Return the paper's sigma of the first switch, from exact expected losses.

    The decrease of EMA's expected loss from T to 2T with a switch at T, divided by the
    decrease without: above 1 the switch helped. NaN where EMA's loss does not decrease
    without a switch, since the ratio is then meaningless.
    """
    rates = constant_rates(rate, 2 * every)
    plain = expected_losses(model, SwitchSettings(decay=decay), rates, start).shadow
    settings = SwitchSettings(decay=decay, every=every)
    switched = expected_losses(model, settings, rates, start).shadow
    fall = plain[every] - plain[-1]
    return float((plain[every] - switched[-1]) / fall) if fall > 0 else float("nan")


def proposition_3(
    model: NoisyQuadratic, rate: float, decay: float, every: int, start: ArrayLike
) -> list[Verdict]:
    """Compare the bounds with the errors, and sigma with 1."""
    found = bounds(model, rate, decay, every, start)
    sgd, ema, sema = found.errors
    return [
        _below(3, "error of SGD", found.sgd, sgd),
        _below(3, "error of EMA, 1-alpha = d (Eq. 1)", found.ema, ema),
        _below(3, "error of EMA, 1-alpha = 1-d (tables)", found.ema_tables, ema),
        _below(3, "error of SEMA", found.sema, sema),
        Verdict(3, "sigma above 1", 1, found.sigma, found.sigma > 1),
        _below(3, "text: bound of EMA < bound of SGD", found.sgd, found.ema),
        _below(3, "proof: bound of SGD < bound of EMA", found.ema, found.sgd),
        _below(3, "bound of SEMA < bound of EMA", found.ema, found.sema),
        _below(3, "error of EMA < error of SGD", sgd, ema),
        _below(3, "error of SEMA < error of EMA", ema, sema),
    ]


def _below(proposition: int, claim: str, claimed: float, measured: float) -> Verdict:
    holds = measured < claimed * (1 - _ROUNDING)
    return Verdict(proposition, claim, claimed, measured, bool(holds))


def _along(claim: str, cosine: float, claimed: bool = True) -> Verdict:
    is_along = cosine > 1 - _ROUNDING
    text = claim if claimed else f"{claim}: claimed not to hold"
    return Verdict(2, text, 1.0, cosine, is_along is claimed)


def _decayed_sums(values: Array, decay: float) -> Array:
    sums = np.zeros_like(values)
    total = np.zeros(values.shape[1])
    for index, value in enumerate(values):
        total = sums[index] = decay * total + value
    return sums


def _smallest_cosine(steps: Array, directions: Array) -> float:
    norms = np.linalg.norm(steps, axis=1) * np.linalg.norm(directions, axis=1)
    return float(np.min((steps * directions).sum(1) / norms))
