"""Directions in weight space, and coordinates of weights along them.

A direction is a dictionary from names of tensors to steps: the point at coordinate
``a`` is ``centre + a * direction``. Names are plain, as in the averagers' state dicts.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from switch_ema._checks import check_choice, check_count
from switch_ema.averaging.model.slots import all_slots

Weights = Mapping[str, Tensor]
Direction = dict[str, Tensor]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class PrincipalDirections:
    """Principal directions of a trajectory."""

    directions: tuple[Direction, ...]
    """Orthonormal, so coordinates are distances."""
    explained: tuple[float, ...]
    """Share of the points' squared distances from the centre, by direction."""


def parameters_of(model: nn.Module, weights: Weights | None = None) -> Direction:
    """Pick the trainable part of a state dict: no buffers, tied weights once.

    Args:
        model: defines which tensors are parameters.
        weights: a state dict with plain names; by default the model's weights.

    Raises:
        ValueError: a parameter is missing.

    >>> sorted(parameters_of(nn.BatchNorm1d(2)))
    ['bias', 'weight']
    """
    slots = [slot for slot in all_slots(model) if not slot.is_buffer]
    if weights is None:
        return {slot.name: slot.tensor.detach().clone() for slot in slots}
    missing = [slot.name for slot in slots if slot.name not in weights]
    if missing:
        raise ValueError(f"weights must have all parameters, missing: {missing[0]}.")
    return {slot.name: weights[slot.name].detach() for slot in slots}


def random_directions(
    weights: Weights,
    count: int = 1,
    *,
    seed: int,
    vectors: Literal["zero", "keep"] = "zero",
    stacked: bool = False,
) -> tuple[Direction, ...]:
    """Draw filter-normalised Gaussian directions.

    ``d_f = g_f * |w_f| / |g_f|`` for each filter f, a slice along the first dimension.
    This makes landscapes comparable between networks whose weights differ in scale
    (Li et al., 2018, https://arxiv.org/abs/1712.09913).

    Args:
        weights: parameters, as from :func:`parameters_of`.
        count: number of directions; the first ones do not depend on it.
        seed: at least 0. The draw depends only on it, not on global generators or the
            device.
        vectors: "zero" does not move biases and normalisation scales, as in the paper;
            "keep" treats each as one filter.
        stacked: whether the first dimension indexes separate networks.

    >>> (direction,) = random_directions({"w": torch.ones(2, 4)}, seed=0)
    >>> direction["w"].norm(dim=1)
    tensor([2., 2.])
    """
    check_choice("vectors", vectors, ("zero", "keep"))
    generator = torch.Generator().manual_seed(check_count("seed", seed, 0))
    directions = []
    for _ in range(check_count("count", count)):
        direction = {}
        for name, weight in weights.items():
            noise = torch.randn(weight.shape, generator=generator)
            noise = noise.to(weight.device, _wide(weight.dtype))
            direction[name] = _like_filters(noise, weight, vectors, int(stacked))
        directions.append(direction)
    return tuple(directions)


def line_between(start: Weights, end: Weights) -> Direction:
    """Return the direction from ``start`` (at 0) to ``end`` (at 1).

    Floating-point buffers among the weights are interpolated as well.

    >>> line_between({"w": torch.tensor([1.0])}, {"w": torch.tensor([3.0])})
    {'w': tensor([2.])}
    """
    if start.keys() != end.keys():
        name = sorted(start.keys() ^ end.keys())[0]
        raise ValueError(
            f"start and end must have the same names, but {name} is in only one."
        )
    return {
        name: (end[name].to(wide) - weight.to(wide)).detach()
        for name, weight in start.items()
        if weight.is_floating_point()
        for wide in [_wide(weight.dtype)]
    }


def principal_directions(
    trajectory: Sequence[Weights], count: int = 2, *, centre: Weights | None = None
) -> PrincipalDirections:
    """Find the directions of a trajectory by exact principal component analysis.

    With one row ``x_i = w_i - centre`` per point, the eigenvectors of the small matrix
    ``X X^T`` give those of the huge ``X^T X``, so the size of the model does not
    matter. Differences are taken from the last point, not from the mean: training
    ended there, and it is the middle of the figure.

    Args:
        trajectory: the parameters of each point, as from :func:`parameters_of`.
        count: number of directions.
        centre: used instead of the last point, such as for joined trajectories.

    Raises:
        ValueError: a point is not finite, or the points span fewer directions.
    """
    if not trajectory:
        raise ValueError("trajectory must have at least one point, got none.")
    centre = trajectory[-1] if centre is None else centre
    names = list(centre)
    gram = torch.zeros(len(trajectory), len(trajectory), dtype=torch.float64)
    for _, rows in _differences(trajectory, centre, names):
        gram += rows @ rows.T
    finite = gram.diagonal().isfinite()
    if not finite.all():
        raise ValueError(f"point {int(finite.int().argmin())} has non-finite weights.")
    squares, vectors = (part.flip(-1) for part in torch.linalg.eigh(gram))
    precision = squares[0] * len(gram) * torch.finfo(torch.float64).eps
    rank = int((squares > precision).sum())
    if check_count("count", count) > rank:
        raise ValueError(f"count must be at most {rank}, the rank of the trajectory.")
    # The sign of an eigenvector is arbitrary; fix it to be reproducible.
    top = vectors[:, :count]
    top = top * top.gather(0, top.abs().argmax(0, keepdim=True)).sign()
    mix = top / squares[:count].sqrt()
    directions: tuple[Direction, ...] = tuple({} for _ in range(count))
    for name, rows in _differences(trajectory, centre, names):
        like = centre[name]
        for direction, step in zip(directions, mix.T @ rows, strict=True):
            direction[name] = step.view(like.shape).to(_wide(like.dtype))
            direction[name] = direction[name].to(like.device)
    shares = squares[:count] / squares.clamp(min=0).sum()
    return PrincipalDirections(directions, tuple(shares.tolist()))


def project(
    trajectory: Sequence[Weights], centre: Weights, directions: Sequence[Weights]
) -> Floats:
    """Project points onto the span of the directions and return their coordinates.

    They solve the least-squares problem ``min_c |w - centre - sum_k c_k d_k|``, which
    is correct for non-orthogonal directions too.

    Returns:
        One row per point, one column per direction; NaN for non-finite weights.

    Raises:
        ValueError: the directions are linearly dependent.
    """
    return _least_squares(trajectory, centre, directions)[0]


def explained_share(
    trajectory: Sequence[Weights], centre: Weights, directions: Sequence[Weights]
) -> float:
    """Return the share of the squared distances from the centre within the span.

    1 means that all points lie in the span of the directions, 0 that all are orthogonal
    to it. NaN if every point equals the centre.
    """
    _, reached, total = _least_squares(trajectory, centre, directions)
    return reached / total if total else float("nan")


def _least_squares(
    trajectory: Sequence[Weights], centre: Weights, directions: Sequence[Weights]
) -> tuple[Floats, float, float]:
    """Return coordinates, and squared distances within the span and in total."""
    names = list(directions[0])
    zero = {name: torch.zeros_like(step) for name, step in directions[0].items()}
    size = len(directions)
    gram = torch.zeros(size, size, dtype=torch.float64)
    right = torch.zeros(size, len(trajectory), dtype=torch.float64)
    total = 0.0
    steps = _differences(directions, zero, names)
    differences = _differences(trajectory, centre, names)
    for (_, step), (_, rows) in zip(steps, differences, strict=True):
        gram += step @ step.T
        right += step @ rows.T
        total += rows.square().sum().item()
    if torch.linalg.matrix_rank(gram, hermitian=True) < size:
        raise ValueError("directions must be linearly independent and not zero.")
    # Column by column, so a non-finite point spoils only its own coordinates.
    columns = [torch.linalg.solve(gram, column) for column in right.T]
    coordinates = torch.stack(columns) if columns else right.T
    reached = (coordinates.T * right).sum().item()
    return coordinates.numpy(), reached, total


def _differences(
    points: Sequence[Weights], centre: Weights, names: Sequence[str]
) -> Iterator[tuple[str, Tensor]]:
    """Yield, tensor by tensor, one row ``point - centre`` per point, in float64."""
    for name in names:
        if not all(name in weights for weights in (*points, centre)):
            raise ValueError(
                f"all points must have the same names, but {name} is missing."
            )
        # Not every device supports float64.
        origin = centre[name].detach().cpu().double()
        rows = [point[name].detach().cpu().double() - origin for point in points]
        yield name, torch.stack(rows).flatten(1) if rows else origin.new_zeros(0, 1)


def _like_filters(noise: Tensor, weight: Tensor, vectors: str, lead: int) -> Tensor:
    is_vector = weight.ndim - lead < 2
    if is_vector and vectors == "zero":
        return torch.zeros_like(noise)
    filters = lead if is_vector else lead + 1
    shape = [*weight.shape[:filters], *[1] * (weight.ndim - filters)]
    rows = int(np.prod(weight.shape[:filters], dtype=int))
    wanted = weight.detach().to(noise.dtype).reshape(rows, -1).norm(dim=1)
    have = noise.reshape(rows, -1).norm(dim=1)
    scale = torch.where(have > 0, wanted / have, 0.0)
    return noise * scale.view(shape)


def _wide(dtype: torch.dtype) -> torch.dtype:
    """Convert half precision to float32, which keeps small entries of directions."""
    return torch.promote_types(dtype, torch.float32)
