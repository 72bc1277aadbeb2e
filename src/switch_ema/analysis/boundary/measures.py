"""Measures of the decision boundaries of two-class classifiers in the plane.

A classifier gives each point of the plane the probability of class 1. Its boundary is
the contour p = 0.5, found on a grid over a window; all lengths are in the units of the
data, and anything outside the window is ignored.

* *Width*: the distance from a boundary point to the nearest point of the contour
  p = 0.25 plus that to the nearest point of p = 0.75, averaged along the boundary.
* *Local width*: logit(0.75) - logit(0.25) = 2.197, divided by the slope of the
  log-odds at the boundary; the median along it. It exists even where a network is so
  unsure that the window has no contour of p = 0.25 or 0.75. The two agree where the
  log-odds are close to linear across the boundary.
* *Roughness* and *curvature spread*: how much the boundary turns back and forth, and
  how unevenly it turns; see :mod:`switch_ema.analysis.boundary.contours`.

Width is not a merit: it shrinks as the weights grow, so a barely trained network has
the widest boundary of all.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import log, nan
from typing import cast

import numpy as np
import torch
from contourpy import ContourGenerator, contour_generator
from numpy.typing import ArrayLike
from scipy.ndimage import map_coordinates  # type: ignore[import-untyped]

from switch_ema._checks import check_count, check_positive
from switch_ema.analysis.boundary.contours import (
    Floats,
    Lines,
    length_of,
    mean_distance,
    roughness_of,
    sample,
)
from switch_ema.analysis.calibration.measures import (
    Predictions,
    calibration_error,
    reliability,
)

Predict = Callable[[Floats], ArrayLike]
"""Maps points (n, 2) to probabilities of class 1: (n,), or (seeds, n) for a stack."""

CONFIDENCE = 0.75
"""The width is measured between the contours of this probability of either class."""
_GAP = 2 * log(CONFIDENCE / (1 - CONFIDENCE))
_TINY = 1e-15  # keeps the log-odds of a probability of 0 or 1 finite


@dataclass(frozen=True)
class PlaneGrid:
    """A regular grid over a window of the plane."""

    x: Floats
    y: Floats

    @classmethod
    def around(
        cls, points: ArrayLike, *, margin: float = 0.1, size: int = 201
    ) -> "PlaneGrid":
        """Cover all points, (..., 2), and a margin.

        Args:
            points: of any number of seeds.
            margin: on each side, as a fraction of the longer side; above 0.
            size: grid points along the longer side, at least 10.
        """
        check_positive("margin", margin)
        check_count("size", size, least=10)
        flat = np.asarray(points, dtype=float).reshape(-1, 2)
        low, high = flat.min(0), flat.max(0)
        longer = float((high - low).max())
        if not longer > 0:
            raise ValueError("points must be finite and not all equal.")
        low, high = low - margin * longer, high + margin * longer
        step = longer * (1 + 2 * margin) / (size - 1)
        counts = np.maximum(np.rint((high - low) / step).astype(int) + 1, 2)
        axes = (np.linspace(low[i], high[i], counts[i]) for i in (0, 1))
        return cls(*axes)

    @property
    def points(self) -> Floats:
        """All points, (n, 2), row by row."""
        return np.stack(np.meshgrid(self.x, self.y), axis=-1).reshape(-1, 2)

    @property
    def step(self) -> float:
        """Distance between neighbours, the larger of the two directions."""
        return float(max(self.x[1] - self.x[0], self.y[1] - self.y[0]))

    @property
    def scale(self) -> float:
        """Default scale of roughness: a sixtieth of the longer side."""
        return float(max(np.ptp(self.x), np.ptp(self.y))) / 60


@dataclass(frozen=True, kw_only=True)
class Boundary:
    """The boundary of one classifier; the module docstring defines the measures.

    Without a boundary in the window, length and components are 0 and the rest is NaN.
    If probabilities are not finite, everything is NaN.
    """

    lines: Lines = ()
    """Where p = 0.5."""
    low: Lines = ()
    """Where p = 1 - CONFIDENCE."""
    high: Lines = ()
    """Where p = CONFIDENCE."""
    length: float = nan
    components: float = nan
    width: float = nan
    local_width: float = nan
    roughness: float = nan
    curvature_spread: float = nan


def measure_boundaries(
    predict: Predict, grid: PlaneGrid, *, scale: float | None = None
) -> tuple[Boundary, ...]:
    """Measure the boundary of one classifier, or of each in a stack.

    Args:
        predict: gives the probabilities of class 1 at (n, 2) points: (n,), or
            (seeds, n). Use float64: float32 rounds probabilities near 1 to 1.
        grid: the window.
        scale: chord length of roughness; ``grid.scale`` by default.

    Examples:
        >>> grid = PlaneGrid.around([[-1, -1], [1, 1]])
        >>> sigmoid = lambda p: 1 / (1 + np.exp(-9 * p[:, 0]))
        >>> (found,) = measure_boundaries(sigmoid, grid)
        >>> round(found.length, 3), round(found.width, 3), found.components
        (2.4, 0.244, 1.0)
    """
    count = len(grid.x) * len(grid.y)
    values = np.asarray(predict(grid.points), dtype=float)
    if values.ndim not in (1, 2) or values.shape[-1] != count:
        raise ValueError(
            f"predict must return ({count},) or (seeds, {count}) probabilities, "
            f"got shape {values.shape}."
        )
    if np.any((values < 0) | (values > 1)):
        raise ValueError(
            "predict must return probabilities in [0, 1], got values from "
            f"{np.nanmin(values):.4g} to {np.nanmax(values):.4g}."
        )
    scale = grid.scale if scale is None else check_positive("scale", scale)
    fields = values.reshape(-1, len(grid.y), len(grid.x))
    return tuple(_measure(field, grid, scale) for field in fields)


def accuracy(probabilities: ArrayLike, classes: ArrayLike) -> Floats:
    """Return the accuracy of each seed in percent; NaN where a p is NaN.

    Args:
        probabilities: of class 1, (..., points).
        classes: 0 or 1, of the same shape.
    """
    p = np.asarray(probabilities, dtype=float)
    accurate = np.asarray((p > 0.5) == (np.asarray(classes) == 1)).mean(-1) * 100
    return np.where(np.isfinite(p).all(-1), accurate, nan)


def calibration_errors(probabilities: ArrayLike, classes: ArrayLike) -> Floats:
    """Return the expected calibration error of each seed in percent (10 bins).

    NaN where a p is NaN.

    Args:
        probabilities: of class 1, (seeds, points).
        classes: 0 or 1, of the same shape.
    """
    found = []
    for own, labels in zip(np.asarray(probabilities), np.asarray(classes), strict=True):
        if not np.isfinite(own).all():
            found.append(nan)
            continue
        both = torch.as_tensor(np.stack([1 - own, own], axis=1))
        predictions = Predictions.from_probabilities(
            both, torch.as_tensor(labels).long()
        )
        found.append(100 * calibration_error(reliability(predictions, 10)))
    return np.array(found)


def _measure(field: Floats, grid: PlaneGrid, scale: float) -> Boundary:
    """Measure one field of probabilities, (rows, columns)."""
    if not np.isfinite(field).all():
        return Boundary()
    # Log-odds are smoother than probabilities, so linear interpolation between the grid
    # points is more accurate.
    p = np.clip(field, _TINY, 1 - _TINY)
    odds = np.log(p) - np.log1p(-p)
    contours = contour_generator(grid.x, grid.y, odds)
    lines = _contours(contours, 0.0)
    low, high = _contours(contours, -_GAP / 2), _contours(contours, _GAP / 2)
    if not lines:
        return Boundary(low=low, high=high, length=0.0, components=0.0)
    places = sample(lines, grid.step / 2)
    roughness, spread = roughness_of(lines, scale)
    return Boundary(
        lines=lines,
        low=low,
        high=high,
        length=sum(map(length_of, lines)),
        components=float(len(lines)),
        width=sum(mean_distance(places, side, grid.step / 2) for side in (low, high)),
        local_width=_local_width(places, odds, grid),
        roughness=roughness,
        curvature_spread=spread,
    )


def _contours(generator: ContourGenerator, level: float) -> Lines:
    lines = cast(list[Floats], generator.lines(level))
    return tuple(line for line in lines if length_of(line) > 0)


def _local_width(places: Floats, odds: Floats, grid: PlaneGrid) -> float:
    slope = np.hypot(*np.gradient(odds, grid.y, grid.x))
    rows = np.interp(places[:, 1], grid.y, np.arange(len(grid.y)))
    columns = np.interp(places[:, 0], grid.x, np.arange(len(grid.x)))
    at = map_coordinates(slope, [rows, columns], order=1)
    return float(_GAP / np.median(at)) if np.median(at) > 0 else nan
