"""Classifiers whose boundary is known."""

from math import isnan, log, nan, pi

import numpy as np
import pytest

from switch_ema.analysis.boundary.measures import (
    Boundary,
    PlaneGrid,
    accuracy,
    calibration_errors,
    measure_boundaries,
)

GRID = PlaneGrid.around([[-1.0, -1.0], [1.0, 1.0]], margin=0.25, size=201)
GAP = 2 * log(3)  # logit(0.75) - logit(0.25)


def sigmoid(odds):
    return 1 / (1 + np.exp(-odds))


def measure(odds, grid=GRID, **options):
    def predict(points):
        return sigmoid(odds(points[:, 0], points[:, 1]))

    (found,) = measure_boundaries(predict, grid, **options)
    return found


@pytest.mark.parametrize("steepness", [4.0, 20.0, 200.0])
def test_a_linear_classifier(steepness):
    """Also where the whole band of uncertainty is narrower than the grid's step."""
    found = measure(lambda x, y: steepness * (x - 0.123))
    assert found.components == 1
    assert found.length == pytest.approx(3.0)
    np.testing.assert_allclose(found.lines[0][:, 0], 0.123, atol=1e-9)
    assert found.width == pytest.approx(GAP / steepness, abs=GRID.step**2)
    assert found.local_width == pytest.approx(GAP / steepness, rel=1e-6)
    assert found.roughness == pytest.approx(0, abs=1e-9)
    assert found.curvature_spread == pytest.approx(0, abs=1e-9)


def test_a_slanted_line_is_as_smooth():
    found = measure(lambda x, y: 9 * (0.6 * x + 0.8 * y))
    assert found.roughness == pytest.approx(0, abs=1e-6)
    assert found.local_width == pytest.approx(GAP / 9, rel=1e-6)
    # Where the line leaves the window, the band is cut off and looks wider.
    assert found.width == pytest.approx(GAP / 9, rel=0.02)


@pytest.mark.parametrize("radius", [0.4, 0.9])
def test_a_circular_classifier(radius):
    found = measure(lambda x, y: 12 * (np.hypot(x, y) - radius))
    assert found.components == 1
    assert found.length == pytest.approx(2 * pi * radius, rel=1e-3)
    assert found.width == pytest.approx(GAP / 12, rel=2e-3)
    assert found.local_width == pytest.approx(GAP / 12, rel=1e-3)
    assert found.roughness < 1e-3
    assert found.curvature_spread < 0.1 / radius


def test_two_circles_are_two_components():
    found = measure(lambda x, y: 9 * (0.3 - np.abs(np.hypot(x, y) - 0.7)))
    assert found.components == 2
    assert found.length == pytest.approx(2 * pi * (0.4 + 1.0), rel=1e-3)


def test_a_wavy_boundary_is_rougher_and_longer_than_a_straight_one():
    straight, gentle, strong = (
        measure(lambda x, y, h=height: 9 * (y - h * np.sin(8 * x)))
        for height in (0, 0.05, 0.2)
    )
    assert straight.roughness < 1e-6 < gentle.roughness < strong.roughness
    assert straight.length < gentle.length < strong.length
    assert straight.curvature_spread < gentle.curvature_spread


def test_roughness_hardly_depends_on_the_grid():
    coarse, fine = (
        measure(
            lambda x, y: 9 * (y - 0.2 * np.sin(8 * x)),
            PlaneGrid.around([[-1, -1], [1, 1]], margin=0.25, size=size),
        )
        for size in (121, 361)
    )
    assert coarse.roughness == pytest.approx(fine.roughness, rel=0.05)


@pytest.mark.parametrize("value", [0.0, 0.3, 0.5, 1.0])
def test_a_constant_classifier_has_no_boundary(value):
    (found,) = measure_boundaries(lambda points: np.full(len(points), value), GRID)
    assert found.lines == ()
    assert (found.length, found.components) == (0, 0)
    for name in ("width", "local_width", "roughness", "curvature_spread"):
        assert isnan(getattr(found, name))


def test_an_unsure_classifier_has_a_local_width_only():
    found = measure(lambda x, y: 0.5 * x)
    assert found.low == found.high == ()
    assert isnan(found.width)
    assert found.local_width == pytest.approx(GAP / 0.5)


def test_a_classifier_that_is_nan_has_no_numbers():
    (found,) = measure_boundaries(lambda points: np.full(len(points), nan), GRID)
    assert isnan(found.length) and isnan(found.components)


def test_a_classifier_that_is_certain_has_a_boundary():
    (found,) = measure_boundaries(lambda points: points[:, 0] > 0.1, GRID)
    assert found.length == pytest.approx(3.0)
    assert np.isfinite(found.width)


def test_a_stack_equals_one_by_one():
    def odds(index, points):
        x, y = points.T
        return 9 * (y - 0.1 * index * np.sin(8 * x)) + index

    stack = measure_boundaries(
        lambda points: np.stack([sigmoid(odds(i, points)) for i in range(3)]), GRID
    )
    for index, found in enumerate(stack):
        (alone,) = measure_boundaries(
            lambda points, i=index: sigmoid(odds(i, points)), GRID
        )
        for name in vars(Boundary()):
            mine, other = getattr(found, name), getattr(alone, name)
            np.testing.assert_equal(mine, other)


def test_the_grid_covers_points_and_margin_in_square_cells():
    grid = PlaneGrid.around([[[0.0, 0.0]], [[4.0, 1.0]]], margin=0.25, size=61)
    assert (grid.x[0], grid.x[-1]) == (-1, 5)
    assert (grid.y[0], grid.y[-1]) == (-1, 2)
    assert (len(grid.x), len(grid.y)) == (61, 31)
    assert grid.step == pytest.approx(0.1)
    assert grid.scale == pytest.approx(0.1)
    np.testing.assert_allclose(grid.points[:2], [[-1, -1], [-0.9, -1]])


def test_accuracy_counts_seed_by_seed():
    p = [[0.9, 0.2, 0.6, 0.4], [0.9, 0.2, 0.6, 0.6], [nan, 0.2, 0.6, 0.6]]
    classes = [[1, 0, 0, 1], [1, 0, 1, 1], [1, 0, 1, 1]]
    np.testing.assert_equal(accuracy(p, classes), [50.0, 100.0, nan])


def test_bad_input():
    with pytest.raises(ValueError, match=r"probabilities in \[0, 1\].*from -9 to 9"):
        measure_boundaries(lambda points: np.linspace(-9, 9, len(points)), GRID)
    with pytest.raises(ValueError, match=r"got shape \(3,\)"):
        measure_boundaries(lambda points: np.ones(3), GRID)
    with pytest.raises(ValueError, match="scale must be a number above 0"):
        measure_boundaries(lambda points: points[:, 0] > 0, GRID, scale=0)
    with pytest.raises(ValueError, match=r"size must be .* at least 10"):
        PlaneGrid.around([[0, 0], [1, 1]], size=5)
    with pytest.raises(ValueError, match="points must"):
        PlaneGrid.around([[1, 1], [1, 1]])


def test_calibration_error_is_the_distance_of_accuracy_and_confidence():
    p = np.array([[0.95] * 4, [0.95, 0.05, 0.95, 0.05], [np.nan] * 4])
    found = calibration_errors(p, [[1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 1, 1]])
    np.testing.assert_allclose(found, [45, 5, np.nan])
