"""Exact analysis, by direction, of periodic and continuous pulls towards an average.

On the noisy quadratic every method here is linear, so along an eigenvector of the
curvature one period is a matrix with additive noise. It determines the steady loss of
the returned weights and the contraction rate. The state is the live weight, the
returned one (shadow or slow weight), and a third that only momentum needs.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from switch_ema._checks import check_count, check_positive, check_range
from switch_ema.theory.quadratic import Array, solve_stationary

Step = tuple[Array, Array]
"""``M`` and ``b`` of ``z = M z + b * noise``."""


@dataclass(frozen=True, kw_only=True)
class Switching:
    """Switch EMA: every ``every`` steps ``live = b * live + (1 - b) * shadow``."""

    decay: float
    every: int
    live_share: float = 0.0

    def __post_init__(self) -> None:
        check_range("decay", self.decay, 0, 1)
        check_count("every", self.every)
        check_range("live_share", self.live_share, 0, 1)

    def steps(self, curvature: float, rate: float) -> Iterator[Step]:
        """Yield one period."""
        one = _averaged(*_sgd(curvature, rate), 1 - self.decay)
        for step in range(1, self.every + 1):
            yield one
            if step == self.every:
                b = self.live_share
                yield np.array([[b, 1 - b, 0], [0, 1, 0], [0, 0, 1.0]]), np.zeros(3)


@dataclass(frozen=True, kw_only=True)
class Pulling:
    """A pull at every step: ``live = w' + pull * (shadow - w)``, as in PACE.

    ``w`` is the live weight before SGD's step and ``w'`` after it. A pull of 0 is EMA.
    """

    decay: float
    pull: float

    def __post_init__(self) -> None:
        check_range("decay", self.decay, 0, 1)
        check_range("pull", self.pull, 0, 1)

    def steps(self, curvature: float, rate: float) -> Iterator[Step]:
        """Yield the only step."""
        matrix, noise = _sgd(curvature, rate)
        matrix[0, :2] += -self.pull, self.pull
        yield _averaged(matrix, noise, 1 - self.decay)


@dataclass(frozen=True, kw_only=True)
class OuterMomentum:
    """Lookahead, or with momentum Snoo: every k steps an outer Nesterov step."""

    k: int
    alpha: float
    momentum: float = 0.0

    def __post_init__(self) -> None:
        check_count("k", self.k)
        check_positive("alpha", self.alpha)
        check_range("momentum", self.momentum, 0, 1)

    def steps(self, curvature: float, rate: float) -> Iterator[Step]:
        """Yield k steps of SGD and the outer one."""
        for _ in range(self.k):
            yield _sgd(curvature, rate)
        m, a = self.momentum, self.alpha
        before = np.array([a, 1 - a, 0])  # p + alpha * (w - p)
        slow = (1 + m) * before - m * np.array([0, 0, 1.0])
        yield np.array([slow, slow, before]), np.zeros(3)


Method = Switching | Pulling | OuterMomentum


@dataclass(frozen=True)
class Settled:
    """Steady state of a method along one direction."""

    loss: float
    """Expected loss of the returned weight at the end of a period."""
    contraction: float
    """Contraction of the distance from a start, per SGD step."""


def settle(
    method: Method, curvature: float, rate: float, noise_variance: float = 1.0
) -> Settled:
    """Solve for the steady state of a method along one direction.

    >>> sgd = settle(Switching(decay=0.0, every=1), 0.1, 1.0)
    >>> round(sgd.loss, 6), round(sgd.contraction, 6)  # 0.05 * 1 / (0.1 * 1.9), 1 - h
    (0.263158, 0.9)
    """
    product, covariance = np.eye(3), np.zeros((3, 3))
    for matrix, spread in method.steps(curvature, rate):
        product = matrix @ product
        covariance = matrix @ covariance @ matrix.T
        covariance += noise_variance * np.outer(spread, spread)
    # Ignore coordinates that a method leaves alone or only copies.
    used = _used(method)
    steady = solve_stationary(
        product[np.ix_(used, used)], covariance[np.ix_(used, used)]
    )
    radius = float(np.abs(np.linalg.eigvals(product[np.ix_(used, used)])).max())
    length = {Switching: "every", Pulling: "", OuterMomentum: "k"}[type(method)]
    steps = getattr(method, length) if length else 1
    return Settled(float(0.5 * curvature * steady[1, 1]), radius ** (1 / steps))


def equal_pull(
    wanted: Switching, curvature: float, rate: float, decay: float
) -> float | None:
    """Find the pull at which a pulling method contracts as fast as a switching one.

    Returns:
        The pull, by bisection; None if no pull in [0, 1) matches.
    """
    aim = settle(wanted, curvature, rate).contraction

    def speed(pull: float) -> float:
        return settle(Pulling(decay=decay, pull=pull), curvature, rate).contraction

    low, high = 0.0, 1 - 1e-9
    if not speed(low) <= aim <= speed(high):
        return None
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if speed(middle) <= aim else (low, middle)
    return low


def _used(method: Method) -> list[int]:
    return [0, 1, 2] if isinstance(method, OuterMomentum) else [0, 1]


def _sgd(curvature: float, rate: float) -> Step:
    matrix = np.eye(3)
    matrix[0, 0] -= check_positive("rate", rate) * curvature
    return matrix, np.array([-rate, 0.0, 0.0])


def _averaged(matrix: Array, noise: Array, weight: float) -> Step:
    """Add ``shadow += weight * (live - shadow)`` to a step."""
    average = np.eye(3)
    average[1, :2] = weight, 1 - weight
    return average @ matrix, average @ noise
