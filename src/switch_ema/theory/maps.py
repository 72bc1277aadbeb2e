"""When switching helps: exact expected losses over ranges of settings."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from switch_ema._checks import check_count, check_positive
from switch_ema.theory.periodic import expected_losses, mode_losses
from switch_ema.theory.quadratic import Array, NoisyQuadratic, SwitchSettings
from switch_ema.theory.simulation import constant_rates


@dataclass(frozen=True, eq=False)
class SwitchMap:
    """Expected losses at a horizon; rows are ``h``, columns are intervals."""

    decay: float
    horizon: int
    distance: float
    intervals: Array
    """T in steps."""
    steepness: Array
    """``h``, learning rate times curvature."""
    switch_ema: Array
    ema: Array
    sgd: Array

    @property
    def windows(self) -> Array:
        """``(1 - d) T``: the interval in units of the averaging window."""
        return (1 - self.decay) * self.intervals


def switch_map(
    decay: float = 0.99,
    horizon: int = 1260,
    distance: float = 10.0,
    steepness: Sequence[float] | Array | None = None,
) -> SwitchMap:
    """Compare Switch EMA's shadow with EMA's and with SGD for all T and ``h``.

    Args:
        decay: of both averages.
        horizon: the number of steps; T takes its proper divisors, so all runs end with
            a switch.
        distance: of the start, in standard deviations of SGD's stationary state.
        steepness: the values of ``h``, each in (0, 2).
    """
    check_count("horizon", horizon, 2)
    h = np.geomspace(1e-3, 1.9, 60) if steepness is None else np.asarray(steepness)
    if not np.all((h > 0) & (h < 2)):
        raise ValueError(
            f"steepness must lie in (0, 2), got {h.min():g} to {h.max():g}."
        )
    # With rate 1 the curvature is h; the scale of the noise cancels in every ratio.
    model = NoisyQuadratic.diagonal(h)
    start = distance * np.sqrt(1 / (h * (2 - h)))
    rates = constant_rates(1.0, horizon)
    plain = mode_losses(model, SwitchSettings(decay=decay), rates, start)
    intervals = [T for T in range(1, horizon) if horizon % T == 0]
    switched = [
        mode_losses(model, SwitchSettings(decay=decay, every=T), rates, start).shadow[
            -1
        ]
        for T in intervals
    ]
    return SwitchMap(
        decay,
        horizon,
        distance,
        np.array(intervals, dtype=np.float64),
        h,
        np.array(switched).T,
        plain.shadow[-1],
        plain.live[-1],
    )


@dataclass(frozen=True)
class Tuned:
    """The best learning rate for given settings, and its final expected loss."""

    rate: float
    live: float
    shadow: float


def tune_rate(
    model: NoisyQuadratic,
    settings: SwitchSettings,
    start: Array,
    candidates: Sequence[float] | Array,
    schedule: Callable[[float], Array],
) -> Tuned:
    """Return the learning rate with the lowest final expected loss of the shadow.

    Args:
        model: the loss.
        settings: decay 0 makes the shadow the live weights, which is SGD.
        start: the first weights.
        candidates: the learning rates to try.
        schedule: makes the rates of all steps from the initial or peak rate.
    """
    found = []
    for rate in candidates:
        rates = schedule(check_positive("candidates", float(rate)))
        losses = expected_losses(model, settings, rates, start)
        found.append(
            Tuned(float(rate), float(losses.live[-1]), float(losses.shadow[-1]))
        )
    if not found:
        raise ValueError("candidates must have at least 1 learning rate, got 0.")
    return min(found, key=lambda tuned: tuned.shadow)
