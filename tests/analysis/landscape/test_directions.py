"""Directions in weight space, against what can be worked out by hand."""

import numpy as np
import pytest
import torch
from torch import nn

from switch_ema.analysis.landscape.directions import (
    explained_share,
    line_between,
    parameters_of,
    principal_directions,
    project,
    random_directions,
)


def weights():
    generator = torch.Generator().manual_seed(3)
    return {
        "conv": torch.randn(5, 2, 3, 3, generator=generator),
        "linear": torch.randn(4, 6, generator=generator),
        "bias": torch.randn(4, generator=generator),
        "scale": torch.tensor(2.0),
    }


def vector(direction):
    return torch.cat([tensor.flatten() for tensor in direction.values()]).double()


def test_each_filter_is_as_long_as_that_of_the_weights():
    (direction,) = random_directions(weights(), seed=0)
    for name in ("conv", "linear"):
        expected = weights()[name].flatten(1).norm(dim=1)
        torch.testing.assert_close(direction[name].flatten(1).norm(dim=1), expected)
    assert not direction["bias"].any()
    assert not direction["scale"].any()


def test_vectors_can_be_kept_as_one_filter_each():
    (direction,) = random_directions(weights(), seed=0, vectors="keep")
    for name in ("bias", "scale"):
        torch.testing.assert_close(direction[name].norm(), weights()[name].norm())


def test_stacked_networks_have_their_own_filters():
    two = {"weight": torch.randn(2, 4, 6), "bias": torch.randn(2, 4)}
    (direction,) = random_directions(two, seed=0, stacked=True)
    torch.testing.assert_close(
        direction["weight"].norm(dim=2), two["weight"].norm(dim=2)
    )
    assert not direction["bias"].any()
    (kept,) = random_directions(two, seed=0, stacked=True, vectors="keep")
    torch.testing.assert_close(kept["bias"].norm(dim=1), two["bias"].norm(dim=1))


def test_filters_without_length_do_not_move():
    (direction,) = random_directions({"w": torch.zeros(3, 2)}, seed=0)
    assert torch.equal(direction["w"], torch.zeros(3, 2))


def test_the_seed_alone_decides():
    torch.manual_seed(1)
    first = random_directions(weights(), 2, seed=5)
    state = torch.get_rng_state()
    again = random_directions(weights(), 2, seed=5)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    (alone,) = random_directions(weights(), seed=5)
    (other,) = random_directions(weights(), seed=6)
    for one, two in zip(first, again, strict=True):
        assert all(torch.equal(one[name], two[name]) for name in one)
    assert all(torch.equal(first[0][name], alone[name]) for name in alone)
    assert not torch.equal(alone["conv"], other["conv"])
    cosine = torch.cosine_similarity(vector(first[0]), vector(first[1]), dim=0)
    assert cosine.abs() < 0.3


def test_directions_of_half_precision_weights_are_single():
    (direction,) = random_directions({"w": torch.ones(2, 3).bfloat16()}, seed=0)
    assert direction["w"].dtype == torch.float32


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": -1}, "seed must be"),
        ({"seed": 0, "vectors": "drop"}, "vectors must be 'zero' or 'keep'"),
        ({"seed": 0, "count": 0}, "count must be"),
    ],
)
def test_bad_options_of_random_directions(options, message):
    with pytest.raises(ValueError, match=message):
        random_directions(weights(), **options)


def test_a_line_leads_from_start_to_end():
    start, end = weights(), {name: 2 * w + 1 for name, w in weights().items()}
    start["count"] = end["count"] = torch.tensor(3)
    line = line_between(start, end)
    assert "count" not in line
    for name, step in line.items():
        torch.testing.assert_close(start[name] + step, end[name])
    del end["bias"]
    with pytest.raises(ValueError, match="bias is in only one"):
        line_between(start, end)


def test_parameters_are_without_buffers_and_twins():
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3))
    model[2].weight = model[0].weight
    names = ["0.weight", "0.bias", "1.weight", "1.bias", "2.bias"]
    assert list(parameters_of(model)) == names
    state = model.state_dict()
    assert list(parameters_of(model, state)) == names
    del state["1.bias"]
    with pytest.raises(ValueError, match=r"missing: 1\.bias"):
        parameters_of(model, state)


def planar(scale=(5.0, 0.5), points=8):
    """A curve in the plane of two known orthonormal directions, ending at 0."""
    basis, _ = torch.linalg.qr(torch.randn(24, 2, dtype=torch.float64))
    coordinates = torch.randn(points, 2, dtype=torch.float64) * torch.tensor(scale)
    coordinates[-1] = 0
    origin = torch.randn(24, dtype=torch.float64)
    flat = origin + coordinates @ basis.T
    return basis, coordinates, [_split(row) for row in flat]


def _split(row):
    return {"a": row[:18].reshape(3, 6), "b": row[18:]}


def test_components_of_a_planar_trajectory_are_its_plane():
    basis, _, trajectory = planar()
    found = principal_directions(trajectory)
    flat = torch.stack([vector(direction) for direction in found.directions])
    torch.testing.assert_close(flat @ flat.T, torch.eye(2, dtype=torch.float64))
    inside = flat @ basis @ basis.T
    torch.testing.assert_close(inside, flat)
    assert sum(found.explained) == pytest.approx(1)
    assert found.explained[0] > 0.9
    assert explained_share(
        trajectory, trajectory[-1], found.directions
    ) == pytest.approx(1)


def test_components_are_those_of_a_plain_svd():
    trajectory = [_split(torch.randn(24, dtype=torch.float64)) for _ in range(6)]
    found = principal_directions(trajectory, 3)
    rows = torch.stack([vector(w) - vector(trajectory[-1]) for w in trajectory])
    _, values, axes = torch.linalg.svd(rows, full_matrices=False)
    shares = values.square() / values.square().sum()
    np.testing.assert_allclose(found.explained, shares[:3])
    for direction, axis in zip(found.directions, axes, strict=False):
        assert abs(vector(direction) @ axis) == pytest.approx(1)
    share = explained_share(trajectory, trajectory[-1], found.directions)
    assert share == pytest.approx(sum(found.explained))


def test_projection_is_exact_for_directions_that_are_not_orthogonal():
    basis, coordinates, trajectory = planar()
    skew = torch.tensor([[1.0, 0.0], [2.0, 0.5]], dtype=torch.float64)
    directions = [_split(row) for row in skew @ basis.T]
    found = project(trajectory, trajectory[-1], directions)
    expected = coordinates @ torch.linalg.inv(skew)
    np.testing.assert_allclose(found, expected, atol=1e-9)


def test_projection_ignores_what_is_off_the_plane():
    basis, coordinates, trajectory = planar()
    off = torch.randn(24, dtype=torch.float64)
    off -= basis @ (basis.T @ off)
    moved = [{name: w[name] + _split(off)[name] for name in w} for w in trajectory]
    directions = [_split(row) for row in basis.T]
    found = project(moved, trajectory[-1], directions)
    np.testing.assert_allclose(found, coordinates, atol=1e-9)
    inside = coordinates.square().sum()
    share = inside / (inside + len(moved) * off.square().sum())
    assert explained_share(moved, trajectory[-1], directions) == pytest.approx(
        float(share)
    )


def test_weights_not_finite_have_no_coordinates_and_no_components():
    basis, coordinates, trajectory = planar()
    trajectory[2]["b"] = trajectory[2]["b"] / 0
    with pytest.raises(ValueError, match="point 2"):
        principal_directions(trajectory)
    found = project(trajectory, trajectory[-1], [_split(row) for row in basis.T])
    assert np.isnan(found[2]).all()
    rest = [i for i in range(len(trajectory)) if i != 2]
    np.testing.assert_allclose(found[rest], coordinates[rest], atol=1e-9)


def test_too_few_points_or_directions_are_refused():
    _, _, trajectory = planar()
    with pytest.raises(ValueError, match="at most 2"):
        principal_directions(trajectory, 3)
    with pytest.raises(ValueError, match="at most 0"):
        principal_directions([trajectory[0]])
    with pytest.raises(ValueError, match="at least one point"):
        principal_directions([])
    direction = line_between(trajectory[0], trajectory[1])
    with pytest.raises(ValueError, match="independent"):
        project(trajectory, trajectory[-1], [direction, direction])
    with pytest.raises(ValueError, match="b is missing"):
        project([{"a": trajectory[0]["a"]}], trajectory[-1], [direction])
