"""Contours whose length and roughness are known."""

from math import atan, isnan, pi, tau

import numpy as np
import pytest

from switch_ema.analysis.boundary.contours import (
    length_of,
    mean_distance,
    resample,
    roughness_of,
    turning_angles,
)


def circle(radius, count=2000, centre=(0.0, 0.0)):
    angle = np.linspace(0, tau, count)
    line = radius * np.stack([np.cos(angle), np.sin(angle)], axis=1) + centre
    line[-1] = line[0]
    return line


def wave(height, number, count=20_000):
    """``number`` whole periods of a sine over [0, 1], from crest to crest."""
    x = np.linspace(0, 1, count)
    return np.stack([x, height * np.cos(tau * number * x)], axis=1)


def polygon(corners, radius=1.0):
    return circle(radius, corners + 1)


def reference_angles(line, scale):
    """One corner after the other, by the angle between two chords."""
    points = resample(line, scale)
    corners = [points[i : i + 3] for i in range(len(points) - 2)]
    if (line[0] == line[-1]).all():
        corners.append(np.array([points[-2], points[0], points[1]]))
    angles = []
    for a, b, c in corners:
        (ux, uy), (vx, vy) = b - a, c - b
        angles.append(np.arctan2(ux * vy - uy * vx, ux * vx + uy * vy))
    return np.array(angles)


@pytest.mark.parametrize("line", [circle(0.7), wave(0.1, 3), polygon(5)])
def test_angles_equal_the_reference(line):
    found = turning_angles(line, 0.04)
    np.testing.assert_allclose(found, reference_angles(line, 0.04), atol=1e-12)


def test_a_straight_line_is_smooth():
    line = np.array([[0.0, 0.0], [0.3, 0.6], [1.0, 2.0]])
    assert roughness_of((line,), 0.1) == pytest.approx((0, 0), abs=1e-12)


@pytest.mark.parametrize("radius", [0.3, 1.0, 4.0])
def test_a_circle_of_any_radius_is_smooth_and_turns_once(radius):
    line = circle(radius)
    roughness, spread = roughness_of((line,), 0.05)
    assert roughness == 0
    assert spread < 0.02 / radius
    assert turning_angles(line, 0.05).sum() == pytest.approx(tau)
    curvature = turning_angles(line, 0.05).mean() / 0.05
    assert curvature == pytest.approx(1 / radius, rel=0.03)


def test_an_arc_is_smooth_although_it_is_open():
    assert roughness_of((circle(1.0)[:700],), 0.05)[0] == 0


def test_roughness_of_a_wave_is_its_turning_by_its_length():
    """From crest to crest a wave turns down, up and back: 4 atan(slope) in all."""
    height, number = 0.02, 3
    line = wave(height, number)
    slope = height * tau * number
    expected = number * 4 * atan(slope) / length_of(line)
    assert roughness_of((line,), 0.002)[0] == pytest.approx(expected, rel=0.01)


def test_roughness_does_not_depend_on_the_direction_or_the_place():
    line = wave(0.05, 4)
    turned = line @ np.array([[0.6, 0.8], [-0.8, 0.6]]) + 5
    expected = roughness_of((line,), 0.02)
    assert roughness_of((line[::-1],), 0.02) == pytest.approx(expected, rel=1e-6)
    assert roughness_of((turned,), 0.02) == pytest.approx(expected, rel=1e-6)


def test_curvature_spread_sees_convex_corners_and_roughness_does_not():
    roughness, spread = roughness_of((polygon(6),), 0.05)
    assert roughness == pytest.approx(0, abs=1e-9)
    assert spread > 50 * roughness_of((circle(1.0),), 0.05)[1]


def test_contours_are_pooled_by_length():
    rough, smooth = wave(0.05, 4), np.array([[0.0, 2.0], [9.0, 2.0]])
    own, spread = roughness_of((rough,), 0.02)
    share = length_of(rough) / (length_of(rough) + 9)
    both = roughness_of((rough, smooth), 0.02)
    assert both == pytest.approx((own * share, spread * share**0.5))


def test_what_is_shorter_than_four_chords_is_not_judged():
    speck = circle(0.01)
    assert all(isnan(value) for value in roughness_of((speck,), 0.05))
    line = wave(0.05, 4)
    assert roughness_of((line, speck), 0.05) == roughness_of((line,), 0.05)


def test_distance_between_circles():
    distance = mean_distance(circle(1.0), (circle(1.2), circle(9.0)), 0.005)
    assert distance == pytest.approx(0.2, abs=1e-4)
    assert isnan(mean_distance(circle(1.0), (), 0.005))


def test_length_of_a_circle():
    assert length_of(circle(1.5)) == pytest.approx(3 * pi, rel=1e-5)
