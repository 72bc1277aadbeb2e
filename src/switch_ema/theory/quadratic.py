r"""The noisy quadratic model, and the stationary covariances of SGD, EMA and SEMA.

The loss is ``L(w) = w' A w / 2`` with its minimum at 0, and a stochastic gradient is
``A w + noise`` with covariance ``G``. The paper draws the minimum instead, from
``N(0, Sigma)``; that is ``G = A Sigma A``, see :meth:`NoisyQuadratic.from_targets`.
Decay ``d`` is the weight of the old shadow; the paper's alpha is ``1 - d``.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import solve_discrete_lyapunov  # type: ignore[import-untyped]

from switch_ema._checks import check_count, check_positive, check_range

Array = NDArray[np.float64]

_TOLERANCE = 1e-12  # relative to the largest entry: smaller differences are rounding


@dataclass(frozen=True, eq=False)
class NoisyQuadratic:
    """A quadratic loss with gradient noise.

    Args:
        curvature: ``A``, symmetric and positive definite.
        gradient_noise: ``G``, symmetric and positive semi-definite.

    >>> model = NoisyQuadratic.diagonal([1.0, 4.0])
    >>> float(model.loss(np.array([1.0, 1.0])))
    2.5
    """

    curvature: Array
    gradient_noise: Array

    def __post_init__(self) -> None:
        for name, strict in (("curvature", True), ("gradient_noise", False)):
            matrix = _symmetric(name, getattr(self, name))
            lowest = float(np.linalg.eigvalsh(matrix)[0])
            if lowest <= 0 if strict else lowest < -_TOLERANCE * np.abs(matrix).max():
                kind = "definite" if strict else "semi-definite"
                raise ValueError(
                    f"{name} must be positive {kind}, got the eigenvalue {lowest:g}."
                )
            object.__setattr__(self, name, matrix)
        if self.curvature.shape != self.gradient_noise.shape:
            raise ValueError(
                f"gradient_noise must have curvature's shape {self.curvature.shape}, "
                f"got {self.gradient_noise.shape}."
            )

    @classmethod
    def diagonal(
        cls, curvatures: ArrayLike, gradient_variances: ArrayLike = 1.0
    ) -> "NoisyQuadratic":
        """Make independent directions with these curvatures and noise variances."""
        values = np.atleast_1d(np.asarray(curvatures, dtype=np.float64))
        variances = np.broadcast_to(gradient_variances, values.shape)
        return cls(np.diag(values), np.diag(variances).astype(np.float64))

    @classmethod
    def from_targets(
        cls, curvature: ArrayLike, target_covariance: ArrayLike
    ) -> "NoisyQuadratic":
        """Make the paper's model, which draws the minimum at each step."""
        matrix = _symmetric("curvature", curvature)
        sigma = _symmetric("target_covariance", target_covariance)
        return cls(matrix, matrix @ sigma @ matrix)

    @property
    def size(self) -> int:
        """The number of weights."""
        return len(self.curvature)

    def loss(self, weights: Array) -> Array:
        """Return the loss above the minimum; the last axis is the weights."""
        products = np.einsum("...i,ij,...j->...", weights, self.curvature, weights)
        return 0.5 * np.asarray(products)

    def expected_loss(self, mean: Array, covariance: Array) -> float:
        """Return the expected loss of weights with this mean and covariance."""
        return float(self.loss(mean) + 0.5 * np.sum(self.curvature * covariance))


@dataclass(frozen=True, kw_only=True)
class SwitchSettings:
    """Training and averaging settings; ``every=None`` never switches.

    Without a switch the live weights are SGD's and the shadow is EMA's.

    Args:
        decay: the weight of the old shadow, in [0, 1).
        momentum: heavy-ball momentum as in torch, in [0, 1):
            ``v = momentum * v + gradient; live = live - rate * v``.
        every: the interval T in steps; after every T-th step ``live = shadow``.
        reset_momentum: whether a switch also sets ``v`` to 0.
    """

    decay: float
    momentum: float = 0.0
    every: int | None = None
    reset_momentum: bool = False

    def __post_init__(self) -> None:
        check_range("decay", self.decay, 0, 1)
        check_range("momentum", self.momentum, 0, 1)
        if self.every is not None:
            check_count("every", self.every)

    def switches_after(self, step: int) -> bool:
        """Whether a switch follows this step; the first step is 1."""
        return self.every is not None and step % self.every == 0


@dataclass(frozen=True, eq=False)
class Stationary:
    """Stationary covariances of the iterates."""

    sgd: Array
    ema: Array
    sema: Array
    """The SEMA in the proof of Proposition 1, which has no interval T."""


def stationary(
    model: NoisyQuadratic, rate: float, decay: float, momentum: float = 0.0
) -> Stationary:
    """Solve the discrete Lyapunov equations of SGD, EMA and the proof's SEMA.

    The proof's SEMA takes a step from its own average and averages at once:
    ``w = d * w + (1 - d) * (w - rate * v)``, with ``v`` the gradient or, with momentum,
    the velocity.

    Raises:
        ValueError: the learning rate is too large for a stationary state.
    """
    settings = SwitchSettings(decay=decay, momentum=momentum)
    step, noise = step_matrices(model.curvature, rate, settings)
    joint = solve_stationary(step, noise @ model.gradient_noise @ noise.T)
    n = model.size
    slow = _literal_matrices(model.curvature, rate, settings)
    literal = solve_stationary(slow[0], slow[1] @ model.gradient_noise @ slow[1].T)
    return Stationary(joint[:n, :n], joint[2 * n :, 2 * n :], literal[:n, :n])


def paper_variances(
    curvature: ArrayLike, target_variance: ArrayLike, rate: float, decay: float
) -> tuple[Array, Array, Array]:
    """Return the paper's formulas of Proposition 1 for SGD, EMA and SEMA.

    They are written for matrices that commute; here each direction is a number.
    """
    new = 1 - decay
    h = rate * np.asarray(curvature, dtype=np.float64)
    sgd = h / (2 - h) * np.asarray(target_variance)
    ema = new / (2 - new) * (2 - new - (1 - new) * h) / (new + (1 - new) * h) * sgd
    k = (2 - new) / new * (new + (1 - new) * h) / (2 - new - (1 - new) * h)
    sema = k * (new * h / (2 - new * h)) * ((2 - h) / h) * ema
    return sgd, ema, sema


def step_matrices(
    curvature: Array, rate: float, settings: SwitchSettings
) -> tuple[Array, Array]:
    """Return ``M`` and ``B`` of one step ``z = M z + B noise``, before any switch.

    The state ``z`` stacks live weights, velocity and shadow.
    """
    check_positive("rate", rate)
    one = np.eye(len(curvature))
    zero, new = np.zeros_like(one), 1 - settings.decay
    velocity = [curvature, settings.momentum * one, zero]
    live = [one - rate * curvature, -rate * settings.momentum * one, zero]
    shadow = [new * live[0], new * live[1], settings.decay * one]
    return np.block([live, velocity, shadow]), np.vstack(
        [-rate * one, one, -new * rate * one]
    )


def solve_stationary(step: Array, noise: Array) -> Array:
    """Solve ``P = M P M' + Q``.

    Raises:
        ValueError: a step does not contract, so no stationary state exists.
    """
    radius = float(np.abs(np.linalg.eigvals(step)).max())
    if radius >= 1:
        raise ValueError(
            "The learning rate is too large for a stationary state: the spectral "
            f"radius of a period must be below 1, got {radius:g}."
        )
    return np.asarray(solve_discrete_lyapunov(step, noise))


def _literal_matrices(
    curvature: Array, rate: float, settings: SwitchSettings
) -> tuple[Array, Array]:
    one = np.eye(len(curvature))
    step = np.block(
        [
            [one - rate * curvature, -rate * settings.momentum * one],
            [curvature, settings.momentum * one],
        ]
    )
    n, new = len(one), 1 - settings.decay
    step[:n] = new * step[:n]
    step[:n, :n] += settings.decay * one
    return step, np.vstack([-new * rate * one, one])


def _symmetric(name: str, values: Any) -> Array:
    matrix = np.asarray(values, dtype=np.float64)
    square = matrix.ndim == 2 and matrix.shape[0] == matrix.shape[1]
    if not square or not np.all(np.isfinite(matrix)):
        raise ValueError(
            f"{name} must be a square matrix of finite numbers, got shape "
            f"{matrix.shape}."
        )
    if np.abs(matrix - matrix.T).max() > _TOLERANCE * np.abs(matrix).max():
        raise ValueError(f"{name} must be symmetric, got {matrix.tolist()!r:.80}.")
    return (matrix + matrix.T) / 2
