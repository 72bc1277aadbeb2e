r"""Geometry of contours: length, distance, and two measures of roughness.

Both measures use the angles a_i by which a contour turns between chords of length s,
the *scale*. Details finer than the scale are invisible, and contours shorter than four
chords are too short to measure.

* *Roughness*: back-and-forth turning per unit of length. In total a contour must turn
  by \|sum a_i\|, which is 2 pi if it is closed and 0 if it leaves in the direction it
  came from; roughness is the sum of \|a_i\| beyond that, divided by the length. It is 0
  for straight lines, circles and every other curve that turns one way only.
* *Curvature spread*: the standard deviation of the curvature a_i / s along each
  contour. It is 0 for straight lines and for circles of any radius, and unlike
  roughness it also detects the corners of a convex polygon.
"""

from math import nan, pi, sqrt

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree  # type: ignore[import-untyped]

Floats = NDArray[np.float64]
Lines = tuple[Floats, ...]
"""Contours, each (points, 2); a closed one ends where it starts."""

_SHORTEST = 4  # minimum number of chords of a measurable contour


def length_of(line: Floats) -> float:
    """Return the length of a contour."""
    return float(np.linalg.norm(np.diff(line, axis=0), axis=1).sum())


def resample(line: Floats, spacing: float) -> Floats:
    """Place evenly spaced points along a contour, including its ends.

    >>> resample(np.array([[0.0, 0.0], [0.9, 0.0], [1.0, 0.0]]), 0.5)[:, 0].tolist()
    [0.0, 0.5, 1.0]
    """
    along = np.r_[0, np.linalg.norm(np.diff(line, axis=0), axis=1).cumsum()]
    even = np.linspace(0, along[-1], max(2, round(along[-1] / spacing) + 1))
    return np.stack([np.interp(even, along, line[:, i]) for i in (0, 1)], axis=1)


def sample(lines: Lines, spacing: float) -> Floats:
    """Place points along all contours."""
    return np.concatenate([resample(line, spacing) for line in lines])


def mean_distance(places: Floats, lines: Lines, spacing: float) -> float:
    """Average the distances from places to the nearest contour point.

    Args:
        places: (n, 2).
        lines: the contours; the result is NaN without any.
        spacing: of the points that represent the contours. A distance d is too long by
            up to ``spacing**2 / (8 * d)``.
    """
    if not lines:
        return nan
    distances, _ = cKDTree(sample(lines, spacing)).query(places)
    return float(distances.mean())


def turning_angles(line: Floats, scale: float) -> Floats:
    """Return the turning angles between chords of a contour; left is positive.

    A closed contour has as many angles as chords, an open one has one fewer.
    """
    chords = np.diff(resample(line, scale), axis=0)
    if np.array_equal(line[0], line[-1]):
        chords = np.concatenate([chords, chords[:1]])
    direction = np.arctan2(chords[:, 1], chords[:, 0])
    return (np.diff(direction) + pi) % (2 * pi) - pi


def roughness_of(lines: Lines, scale: float) -> tuple[float, float]:
    """Measure roughness and curvature spread, pooled over the contours by length.

    Both are NaN if no contour is long enough.
    """
    excess = squares = total = 0.0
    for line in lines:
        length = length_of(line)
        if length < _SHORTEST * scale:
            continue
        angles = turning_angles(line, scale)
        step = length / round(length / scale)
        excess += float(np.abs(angles).sum() - abs(angles.sum()))
        squares += length * float(np.var(angles)) / step**2
        total += length
    if not total:
        return nan, nan
    return max(0.0, excess) / total, sqrt(squares / total)
