"""Simulates the noisy quadratic model: many independent chains at once.

Nothing here uses the matrices of ``quadratic`` or ``periodic``: the steps are written
out like an optimizer's and an averager's, so the two can check each other.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from switch_ema._checks import check_count, check_positive, check_range
from switch_ema.theory.quadratic import Array, NoisyQuadratic, SwitchSettings


@dataclass(frozen=True, eq=False)
class State:
    """State of all chains after a step and its switch, if any."""

    live: Array
    velocity: Array
    shadow: Array


def constant_rates(rate: float, steps: int) -> Array:
    """Return the same learning rate for each step."""
    return np.full(check_count("steps", steps), check_positive("rate", rate))


def cosine_rates(peak: float, steps: int) -> Array:
    """Return learning rates that decay from ``peak`` towards 0 along half a cosine."""
    phase = np.arange(check_count("steps", steps)) / steps
    return np.asarray(check_positive("peak", peak) * (1 + np.cos(np.pi * phase)) / 2)


def step_rates(
    peak: float, steps: int, drops: Sequence[int], factor: float = 0.1
) -> Array:
    """Return learning rates that are multiplied by ``factor`` after each drop.

    Args:
        peak: the first learning rate.
        steps: number of steps.
        drops: steps after which the learning rate drops.
        factor: above 0.
    """
    done = np.arange(check_count("steps", steps))[:, None] >= np.asarray(drops)
    powers = check_positive("factor", factor) ** done.sum(1)
    return np.asarray(check_positive("peak", peak) * powers)


def gradient_noise(model: NoisyQuadratic, chains: int, seed: int) -> Iterator[Array]:
    """Yield the noise of successive steps for all chains, without end."""
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
    """Simulate SGD with EMA or, if the settings have an interval, Switch EMA.

    Args:
        model: the loss.
        settings: decay, momentum, interval.
        rates: the learning rate of each step.
        start: the initial weights, of live and shadow alike.
        noise: of the gradient, one array (chains, weights) per step.

    Yields:
        The state after each step and its switch, if any.
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
    """Simulate Equation 3 literally (reading 2); live weights and shadow are one.

    The optimizer's iterate is averaged with the previous weights and replaces them; at
    each multiple of ``every`` it is kept unaveraged. The proofs have no such step; use
    ``every=None`` for them.
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
    for state in states:  # noqa: B007 - the others are skipped
        pass
    if state is None:
        raise ValueError("rates must have at least 1 step, got 0.")
    return state


def mean_and_error(samples: Array) -> tuple[Array, Array]:
    """Return mean and standard error over the first axis, the independent chains."""
    count = len(samples)
    if count < 2:
        raise ValueError(
            f"chains must be at least 2 to estimate an error, got {count}."
        )
    return samples.mean(0), samples.std(0, ddof=1) / np.sqrt(count)
