"""Boundaries of several methods over the same seeds: means, intervals, differences."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, nan, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import t as student  # type: ignore[import-untyped]

from switch_ema.analysis.boundary.contours import Floats
from switch_ema.analysis.boundary.measures import Boundary

MEASURES = {
    "accuracy": "%",
    "width": "data units",
    "local_width": "data units",
    "roughness": "rad per data unit",
    "curvature_spread": "1 / data unit",
    "length": "data units",
    "components": "",
}
"""What is measured per seed, with its unit."""


@dataclass(frozen=True, kw_only=True)
class MethodBoundaries:
    """What one method made of the same data, seed by seed."""

    method: str
    boundaries: tuple[Boundary, ...]
    probabilities: Floats
    """Of class 1 at the test points, (seeds, points)."""
    accuracy: Floats
    """In percent, (seeds,)."""

    def values(self, measure: str) -> Floats:
        """Return one of ``MEASURES`` of every seed."""
        if measure not in MEASURES:
            raise ValueError(f"measure must be in {[*MEASURES]}, got {measure!r}.")
        if measure == "accuracy":
            return self.accuracy
        return np.array([getattr(one, measure) for one in self.boundaries])


class Interval(NamedTuple):
    """A mean over seeds with its 95% confidence interval, by Student's t.

    NaN takes the place of what so few values do not give.
    """

    mean: float
    low: float
    high: float
    n: int
    """Seeds that have a value."""


def interval(values: ArrayLike) -> Interval:
    """Average over seeds; those without a finite value are left out, as n tells.

    >>> tuple(round(number, 2) for number in interval([1.0, 2.0, 3.0, nan]))
    (2.0, -0.48, 4.48, 3)
    """
    finite = np.asarray(values, dtype=float)
    finite = finite[np.isfinite(finite)]
    n = len(finite)
    mean = float(finite.mean()) if n else nan
    error = float(finite.std(ddof=1)) / sqrt(n) if n > 1 else nan
    half = error * float(student.isf(0.025, n - 1)) if isfinite(error) else nan
    return Interval(mean, mean - half, mean + half, n)


class Measured(NamedTuple):
    """One measure of one method."""

    measure: str
    method: str
    value: Interval
    difference: Interval | None
    """Paired by seed, method minus baseline; None for the baseline itself."""


def summarize(
    methods: Sequence[MethodBoundaries], measures: Sequence[str] = tuple(MEASURES)
) -> tuple[Measured, ...]:
    """Summarise measure by measure, method by method; the first is the baseline."""
    rows = []
    for measure in measures:
        base = methods[0].values(measure)
        for index, method in enumerate(methods):
            own = method.values(measure)
            difference = interval(own - base) if index else None
            rows.append(Measured(measure, method.method, interval(own), difference))
    return tuple(rows)


def named(measure: str) -> str:
    """Name a measure and its unit, for headings and axes.

    >>> named("accuracy"), named("local_width")
    ('accuracy (%)', 'local width (data units)')
    """
    name, unit = measure.replace("_", " "), MEASURES[measure]
    return f"{name} ({unit})" if unit else name
