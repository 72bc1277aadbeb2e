"""Loss landscapes along a line and on a plane in weight space.

All compared sets of weights are measured along the same directions. Results are plain
arrays and convert to JSON, to redraw figures later.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import nn

from switch_ema._checks import check_count, check_positive
from switch_ema.analysis.landscape.directions import (
    Floats,
    Weights,
    explained_share,
    project,
)
from switch_ema.analysis.landscape.evaluation import evaluate_points
from switch_ema.analysis.probes import Probe


@dataclass(frozen=True, kw_only=True)
class Notes:
    """Facts for the caption."""

    direction: str = ""
    """Such as "a random filter-normalised direction"."""
    seed: int | None = None
    """Seed of the random directions."""
    data: str = ""
    """Data of the measurement, such as "1,000 training images"."""
    explained: tuple[float, ...] = ()
    """Explained share of each principal direction."""


@dataclass(frozen=True, eq=False)
class LandscapeLine:
    """Values at ``centre + step * direction`` for several centres."""

    steps: Floats
    labels: tuple[str, ...]
    """The sets of weights, such as "EMA"."""
    values: dict[str, Floats]
    """For each measured name, one row per label and one column per step."""
    notes: Notes = field(default_factory=Notes)

    @property
    def gaps(self) -> dict[str, int]:
        """Number of steps with a non-finite value, by label."""
        missing = np.isnan(next(iter(self.values.values()))).sum(1)
        return dict(zip(self.labels, missing.tolist(), strict=True))

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists for JSON, with None in gaps."""
        return {
            "steps": self.steps.tolist(),
            "labels": list(self.labels),
            "values": {name: _plain(rows) for name, rows in self.values.items()},
            "notes": asdict(self.notes),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "LandscapeLine":
        """Undo :meth:`to_dict`."""
        values = {name: _array(rows) for name, rows in data["values"].items()}
        labels = tuple(data["labels"])
        return cls(_array(data["steps"]), labels, values, _notes(data["notes"]))


@dataclass(frozen=True, eq=False)
class LandscapeSurface:
    """Values at ``centre + x * direction_0 + y * direction_1``."""

    x: Floats
    y: Floats
    values: dict[str, Floats]
    """For each measured name, one row per y and one column per x."""
    paths: dict[str, Floats] = field(default_factory=dict)
    """Trajectories projected on the plane: one row (x, y) per point."""
    shares: dict[str, float] = field(default_factory=dict)
    """Share of each path's squared distances that lies in the plane."""
    label: str = ""
    """Label of the weights at the centre."""
    notes: Notes = field(default_factory=Notes)

    @property
    def gaps(self) -> int:
        """Number of points with a non-finite value."""
        return int(np.isnan(next(iter(self.values.values()))).sum())

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists for JSON, with None in gaps."""
        return {
            "x": self.x.tolist(),
            "y": self.y.tolist(),
            "values": {name: _plain(rows) for name, rows in self.values.items()},
            "paths": {name: _plain(path) for name, path in self.paths.items()},
            "shares": dict(
                zip(self.shares, _plain([*self.shares.values()]), strict=True)
            ),
            "label": self.label,
            "notes": asdict(self.notes),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "LandscapeSurface":
        """Undo :meth:`to_dict`."""
        return cls(
            x=_array(data["x"]),
            y=_array(data["y"]),
            values={name: _array(rows) for name, rows in data["values"].items()},
            paths={name: _array(path) for name, path in data["paths"].items()},
            shares={name: float(_array(s)) for name, s in data["shares"].items()},
            label=data["label"],
            notes=_notes(data["notes"]),
        )


def landscape_1d(
    model: nn.Module,
    weights: Mapping[str, Weights],
    direction: Weights,
    probes: Sequence[Probe],
    *,
    steps: npt.ArrayLike | None = None,
    notes: Notes | None = None,
    recompute_norm: Iterable[Any] | None = None,
    vectorise: bool | None = None,
    memory: float | None = None,
) -> LandscapeLine:
    """Measure along one direction from each of several sets of weights.

    Args:
        model: provides the architecture; restored afterwards.
        weights: a state dict for each label.
        direction: shared by all of them.
        probes: what to measure.
        steps: by default 41 from -1 to 1.
        notes: for the caption.
        recompute_norm: see :func:`evaluate_points`, also for the next two.
        vectorise: measure many points at once, or not.
        memory: bytes for that.
    """
    if not weights:
        raise ValueError("weights must have at least one state dict, got none.")
    line = _steps("steps", np.linspace(-1, 1, 41) if steps is None else steps)
    norm_batches = None if recompute_norm is None else list(recompute_norm)
    found = [
        evaluate_points(
            model,
            centre,
            [direction],
            line[:, None],
            probes,
            recompute_norm=norm_batches,
            vectorise=vectorise,
            memory=memory,
        ).values
        for centre in weights.values()
    ]
    values = {name: np.stack([each[name] for each in found]) for name in found[0]}
    return LandscapeLine(line, tuple(weights), values, notes or Notes())


def landscape_2d(
    model: nn.Module,
    centre: Weights,
    directions: tuple[Weights, Weights],
    probes: Sequence[Probe],
    *,
    x: npt.ArrayLike | None = None,
    y: npt.ArrayLike | None = None,
    paths: Mapping[str, Sequence[Weights]] | None = None,
    label: str = "",
    notes: Notes | None = None,
    recompute_norm: Iterable[Any] | None = None,
    vectorise: bool | None = None,
    memory: float | None = None,
) -> LandscapeSurface:
    """Measure on the plane through the centre spanned by two directions.

    To compare methods, draw their trajectories on one surface as ``paths``, or call
    this for the weights of each with the same directions.

    Args:
        model: provides the architecture; restored afterwards.
        centre: a state dict.
        directions: of the x and the y axis.
        probes: what to measure.
        x: steps along the first direction, by default 25 from -1 to 1.
        y: steps along the second.
        paths: trajectories to project onto the plane, by label.
        label: of the weights at the centre.
        notes: for the caption.
        recompute_norm: see :func:`evaluate_points`, also for the next two.
        vectorise: measure many points at once, or not.
        memory: bytes for that.
    """
    across = _steps("x", np.linspace(-1, 1, 25) if x is None else x)
    up = _steps("y", np.linspace(-1, 1, 25) if y is None else y)
    grid = np.stack(np.meshgrid(across, up), axis=-1)
    found = evaluate_points(
        model,
        centre,
        directions,
        grid.reshape(-1, 2),
        probes,
        recompute_norm=recompute_norm,
        vectorise=vectorise,
        memory=memory,
    )
    values = {name: row.reshape(grid.shape[:2]) for name, row in found.values.items()}
    projected, shares = {}, {}
    for name, path in (paths or {}).items():
        projected[name] = project(path, centre, directions)
        shares[name] = explained_share(path, centre, directions)
    return LandscapeSurface(
        across, up, values, projected, shares, label, notes or Notes()
    )


def steps_around(
    coordinates: npt.ArrayLike, count: int = 25, *, margin: float = 0.2
) -> tuple[Floats, Floats]:
    """Choose steps of a plane that include the given points and the centre.

    Args:
        coordinates: rows (x, y), such as from :func:`project`.
        count: steps along each axis.
        margin: on each side, as a share of the extent.

    >>> x, y = steps_around([[2.0, 1.0], [0.0, -1.0]], 3, margin=0.5)
    >>> x.tolist(), y.tolist()
    ([-1.0, 1.0, 3.0], [-2.0, 0.0, 2.0])
    """
    check_count("count", count, 2)
    check_positive("margin", margin)
    rows = np.asarray(coordinates, dtype=np.float64).reshape(-1, 2)
    shown = np.vstack([rows[np.isfinite(rows).all(1)], np.zeros((1, 2))])
    low, high = shown.min(0), shown.max(0)
    extent = np.where(high > low, high - low, 1.0)
    edges = np.linspace(low - margin * extent, high + margin * extent, count)
    return edges[:, 0], edges[:, 1]


def _steps(name: str, steps: npt.ArrayLike) -> Floats:
    array = np.array(steps, dtype=np.float64)
    if array.ndim != 1 or array.size < 2 or not (np.diff(array) > 0).all():
        raise ValueError(
            f"{name} must be at least 2 increasing numbers, got {steps!r}."
        )
    return array


def _plain(values: npt.ArrayLike) -> Any:
    array = np.asarray(values, dtype=np.float64).astype(object)
    array[array != array] = None
    return array.tolist()


def _array(values: Any) -> Floats:
    return np.array(values, dtype=np.float64)


def _notes(data: Mapping[str, Any]) -> Notes:
    return Notes(**{**data, "explained": tuple(data["explained"])})
