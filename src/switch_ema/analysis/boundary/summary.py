"""Boundaries of several methods over the same seeds: means, intervals, differences."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from switch_ema.analysis.boundary.contours import Floats
from switch_ema.analysis.boundary.measures import Boundary
from switch_ema.analysis.intervals import Interval, interval

MEASURES = {
    "accuracy": "%",
    "calibration_error": "%",
    "width": "data units",
    "local_width": "data units",
    "roughness": "rad per data unit",
    "curvature_spread": "1 / data unit",
    "length": "data units",
    "components": "",
}
"""The measures per seed, with their units."""


@dataclass(frozen=True, kw_only=True)
class MethodBoundaries:
    """Results of one method, seed by seed."""

    method: str
    boundaries: tuple[Boundary, ...]
    probabilities: Floats
    """Probability of class 1 at the test points, (seeds, points)."""
    accuracy: Floats
    """In percent, (seeds,)."""
    calibration_error: Floats
    """Expected calibration error in percent, (seeds,)."""

    def values(self, measure: str) -> Floats:
        """Return one of ``MEASURES`` for every seed."""
        if measure not in MEASURES:
            raise ValueError(f"measure must be in {[*MEASURES]}, got {measure!r}.")
        if measure == "accuracy":
            return self.accuracy
        if measure == "calibration_error":
            return self.calibration_error
        return np.array([getattr(one, measure) for one in self.boundaries])


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
    """Summarise every measure of every method; the first is the baseline."""
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
