"""The noisy quadratic model, played: many independent chains at once.

Nothing here uses the matrices of ``quadratic`` or ``periodic``: the steps are written
out as an optimizer and an averager take them, so that the two can check each other.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from switch_ema._checks import check_count, check_positive, check_range
from switch_ema.theory.quadratic import Array, NoisyQuadratic, SwitchSettings


@dataclass(frozen=True, eq=False)
class State:
    """Where all chains stand after a step and the switch that follows it."""

    live: Array
    velocity: Array
    shadow: Array


def constant_rates(rate: float, steps: int) -> Array:
    """Return the same learning rate for each step."""
    return np.full(check_count("steps", steps), check_positive("rate", rate))


def cosine_rates(peak: float, steps: int) -> Array:
    """Return learning rates that fall from ``peak`` towards 0 as half a cosine."""
    phase = np.arange(check_count("steps", steps)) / steps
    return np.asarray(check_positive("peak", peak) * (1 + np.cos(np.pi * phase)) / 2)


def step_rates(
    peak: float, steps: int, drops: Sequence[int], factor: float = 0.1
) -> Array:
    """Return learning rates that are multiplied by ``factor`` after each drop.

    Args:
        peak: the first learning rate.
        steps: how many.
        drops: after how many steps the learning rate falls.
        factor: above 0.
    """
    done = np.arange(check_count("steps", steps))[:, None] >= np.asarray(drops)
    powers = check_positive("factor", factor) ** done.sum(1)
    return np.asarray(check_positive("peak", peak) * powers)


def gradient_noise(model: NoisyQuadratic, chains: int, seed: int) -> Iterator[Array]:
    """Draw the noise of one step after another, for all chains, without an end."""
    check_count("chains", chains)
    values, basis = np.linalg.eigh(model.gradient_noise)
    root = basis * np.sqrt(np.maximum(values, 0))
    generator = np.random.default_rng(seed)
    while True:
        yield generator.standard_normal((chains, model.size)) @ root.T


def switch_ema_steps(
    model: NoisyQuadratic,
    settings: SwitchSettings,
    rates: Array,
    start: ArrayLike,
    noise: Iterable[Array],
) -> Iterator[State]:
    """Play SGD with EMA and, if the settings has an interval, Switch EMA (reading 1).

    Args:
        model: the loss.
        settings: decay, momentum, interval.
        rates: the learning rate of each step.
        start: the first weights, of live and shadow alike.
        noise: of the gradient, one array (chains, weights) per step.

    Yields:
        The state after each step and the switch that follows it.
    """
    live = shadow = np.asarray(start, dtype=np.float64)
    velocity = np.zeros_like(live)
    for step, (rate, xi) in enumerate(zip(rates, noise, strict=False), start=1):
        velocity = settings.momentum * velocity + live @ model.curvature + xi
        live = live - rate * velocity
        shadow = settings.decay * shadow + (1 - settings.decay) * live
        if settings.switches_after(step):
            live = shadow
            if settings.reset_momentum:
                velocity = np.zeros_like(velocity)
        yield State(live, velocity, shadow)


def literal_steps(
    model: NoisyQuadratic,
    decay: float,
    every: int | None,
    rates: Array,
    start: ArrayLike,
    noise: Iterable[Array],
    momentum: float = 0.0,
) -> Iterator[State]:
    """Play Equation 3 as it stands (reading 2); live weights and shadow are one.

    The optimizer's iterate is averaged with the weights before it and replaces them;
    at each multiple of ``every`` it is kept as it is. The proofs have no such step:
    that is ``every=None``.
    """
    check_range("decay", decay, 0, 1)
    live = np.asarray(start, dtype=np.float64)
    velocity = np.zeros_like(live)
    for step, (rate, xi) in enumerate(zip(rates, noise, strict=False), start=1):
        velocity = momentum * velocity + live @ model.curvature + xi
        iterate = live - rate * velocity
        is_full = every is not None and step % every == 0
        live = iterate if is_full else decay * live + (1 - decay) * iterate
        yield State(live, velocity, live)


def last(states: Iterable[State]) -> State:
    """Return the last state.

    Raises:
        ValueError: there is none.
    """
    state = None
    for state in states:  # noqa: B007 - the others are passed over
        pass
    if state is None:
        raise ValueError("rates must have at least 1 step, got 0.")
    return state


def mean_and_error(samples: Array) -> tuple[Array, Array]:
    """Return mean and standard error over the first axis, the independent chains."""
    count = len(samples)
    if count < 2:
        raise ValueError(f"chains must be at least 2 for an error, got {count}.")
    return samples.mean(0), samples.std(0, ddof=1) / np.sqrt(count)
