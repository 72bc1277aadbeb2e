"""Landscapes, sharpness and calibration of the weights a comparison kept."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from switch_ema.analysis.calibration.measures import (
    Bin,
    Calibration,
    Predictions,
    measure_calibration,
    reliability,
)
from switch_ema.analysis.landscape.directions import (
    Floats,
    line_between,
    parameters_of,
    principal_directions,
    project,
    random_directions,
)
from switch_ema.analysis.landscape.surface import (
    LandscapeLine,
    LandscapeSurface,
    Notes,
    landscape_1d,
    landscape_2d,
)
from switch_ema.analysis.method_style import display_name
from switch_ema.analysis.probes import Probe
from switch_ema.analysis.sharpness.curvature import LossSurface
from switch_ema.analysis.sharpness.measures import (
    NoiseCurve,
    Sharpness,
    loss_under_noise,
    measure_sharpness,
    noise_curve,
)
from switch_ema.analysis.sharpness.spectrum import hessian_trace, top_eigenvalues
from switch_ema.bench.analyses.landscape_settings import LandscapeSettings
from switch_ema.bench.results.kept_weights import KeptTask
from switch_ema.bench.train.context import using_threads
from switch_ema.bench.train.weights import Weights

TEST_LOSS = "test loss"
"""Name of the cross-entropy on the test data."""
NOISE = (0.02, 0.05, 0.1, 0.2, 0.3)
"""Noise levels for the loss, as shares of the filter norms."""


@dataclass(frozen=True)
class Flatness:
    """Sharpness of the training loss around some weights; lower is flatter."""

    loss: float
    top: float
    """Largest eigenvalue of the Hessian."""
    trace: float
    noise: float
    """Rise of the loss under noise of a tenth of the filters."""


_Arguments = ParamSpec("_Arguments")
_Found = TypeVar("_Found")


def _with_threads_of_run(
    measure: Callable[Concatenate["TaskLandscape", _Arguments], _Found],
) -> Callable[Concatenate["TaskLandscape", _Arguments], _Found]:
    """Measure with the same number of threads as in training."""

    @wraps(measure)
    def measured(
        self: "TaskLandscape", /, *args: _Arguments.args, **kwargs: _Arguments.kwargs
    ) -> _Found:
        with using_threads(self.kept.threads):
            return measure(self, *args, **kwargs)

    return measured


class TaskLandscape:
    """One task's landscapes, computed on demand."""

    def __init__(self, kept: KeptTask, settings: LandscapeSettings) -> None:
        self.kept, self.settings = kept, settings
        self._batches = kept.batches(settings.batches)
        self._again = self._batches if settings.recompute_norm else None
        self._data = f"{_size(self._batches)} of seed {kept.seed}"

    @_with_threads_of_run
    def random_line(self, *, tested: bool = False) -> LandscapeLine:
        """Measure along one random direction from the weights of every method.

        Args:
            tested: whether to measure the cross-entropy on the test data as well, as
                ``TEST_LOSS``, where the task classifies.
        """
        first = parameters_of(self.kept.model, next(iter(self.kept.weights.values())))
        settings = self.settings
        (direction,) = random_directions(
            first, seed=settings.seed, stacked=self.kept.is_stacked
        )
        return landscape_1d(
            self.kept.model,
            self.kept.weights,
            direction,
            self._probes(tested),
            steps=np.linspace(-settings.reach, settings.reach, settings.points),
            notes=Notes(
                direction="a random filter-normalised direction",
                seed=settings.seed,
                data=self._data,
            ),
            recompute_norm=self._again,
        )

    @_with_threads_of_run
    def line_to(self, method: str) -> LandscapeLine:
        """Measure from the first method's weights (0) to another's (1) and beyond."""
        start, first = next(iter(self.kept.weights.items()))
        return landscape_1d(
            self.kept.model,
            {f"{display_name(start)} to {display_name(method)}": first},
            line_between(first, self.kept.weights[method]),
            self._probes(),
            steps=np.linspace(-0.5, 1.5, self.settings.points),
            notes=Notes(
                direction=f"the line from {display_name(start)} (0) to "
                f"{display_name(method)} (1)",
                data=self._data,
            ),
            recompute_norm=self._again,
        )

    @_with_threads_of_run
    def plane(self) -> LandscapeSurface | None:
        """Measure the plane in which the methods moved.

        None if the trajectories were not kept or are too short to span a plane;
        diverged methods are omitted.
        """
        paths = {
            label: path
            for label, path in self.kept.trajectory.items()
            if all(bool(v.isfinite().all()) for point in path for v in point.values())
        }
        if not paths:
            return None
        label, path = list(paths.items())[-1]
        centre = path[-1]
        everything = [point for points in paths.values() for point in points]
        try:
            found = principal_directions(everything, 2, centre=centre)
        except ValueError:  # too short to span a plane, such as one epoch
            return None
        reached = project(everything, centre, found.directions)
        return landscape_2d(
            self.kept.model,
            self.kept.weights[label],
            (found.directions[0], found.directions[1]),
            self._probes()[:1],
            x=_around(reached[:, 0], self.settings.side),
            y=_around(reached[:, 1], self.settings.side),
            paths=paths,
            label=label,
            notes=Notes(
                direction="the two principal directions of all trajectories together",
                data=self._data,
                explained=tuple(found.explained),
            ),
            recompute_norm=self._again,
        )

    @_with_threads_of_run
    def sharpness(self, method: str) -> tuple[Sharpness, NoiseCurve]:
        """Measure curvature and the rise of the loss around a method's weights."""
        with _loaded(self.kept.model, self.kept.weights[method]):
            surface = LossSurface(self.kept.model, self.kept.task.loss, self._batches)
            seed = self.settings.seed
            curve = noise_curve(surface, NOISE, scale="filter", seed=seed)
            return measure_sharpness(surface, seed=seed), curve

    @_with_threads_of_run
    def flatness(self, method: str) -> Flatness:
        """Measure a cheap subset of :meth:`sharpness`."""
        with _loaded(self.kept.model, self.kept.weights[method]):
            surface = LossSurface(self.kept.model, self.kept.task.loss, self._batches)
            seed = self.settings.seed
            noise = loss_under_noise(surface, 0.1, scale="filter", seed=seed)
            return Flatness(
                loss=surface.value(),
                top=top_eigenvalues(surface, 1, seed=seed)[0],
                trace=hessian_trace(surface, 16, seed=seed).mean,
                noise=noise.mean,
            )

    @_with_threads_of_run
    def calibration(self, method: str) -> tuple[Calibration, tuple[Bin, ...]] | None:
        """Measure calibration; None for tasks without classes.

        The temperature is fitted on every other test example and evaluated on the rest.
        """
        found = self._predictions(method)
        if found is None:
            return None
        outputs, labels = found
        held_out = Predictions.from_logits(outputs[::2], labels[::2])
        measured = Predictions.from_logits(outputs[1::2], labels[1::2])
        return measure_calibration(measured, held_out), reliability(measured, 10)

    @torch.no_grad()
    def _predictions(self, method: str) -> tuple[Tensor, Tensor] | None:
        with _loaded(self.kept.model, self.kept.weights[method]):
            return self.kept.task.predictions(self.kept.model)

    def _probes(self, tested: bool = False) -> list[Probe]:
        task, metric = self.kept.task, self.kept.task.metrics[0]

        def loss(model: nn.Module, batch: Any) -> Mapping[str, Tensor]:
            return {"loss": task.loss(model, batch)}

        def evaluation(model: nn.Module, batch: Any) -> Mapping[str, float]:
            value: Any = task.evaluate(model)[metric.name]
            return {metric.name: value[0] if isinstance(value, list) else value}

        def accuracy(model: nn.Module, batch: Any) -> Mapping[str, Tensor]:
            found = task.predictions(model)
            assert found is not None
            outputs, labels = found
            right = 100 * (outputs.argmax(1) == labels).float().mean()
            more = {TEST_LOSS: cross_entropy(outputs, labels)} if tested else {}
            return {"accuracy": right, **more}

        by_hand = metric.name == "accuracy" and self._classifies
        measure = accuracy if by_hand else evaluation
        return [
            Probe(loss, self._batches),
            Probe(measure, [()], weight=lambda _: 1.0),
        ]

    @cached_property
    def _classifies(self) -> bool:
        return self._predictions(next(iter(self.kept.weights))) is not None


def _size(batches: list[Any]) -> str:
    if all(isinstance(batch, tuple) and batch[-1].ndim == 1 for batch in batches):
        return f"{sum(len(batch[-1]) for batch in batches):,} training examples"
    return f"{len(batches)} training batches"


@contextmanager
def _loaded(model: nn.Module, weights: Weights) -> Iterator[None]:
    """Load the weights into the model inside the context, in evaluation mode."""
    before = {name: value.clone() for name, value in model.state_dict().items()}
    was_training = model.training
    model.eval()
    try:
        model.load_state_dict(dict(weights))
        yield
    finally:
        model.load_state_dict(before)
        model.train(was_training)


def _around(values: Floats, count: int) -> Floats:
    """Space points evenly over the range of the values plus a margin."""
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (-1, 1)
    margin = 0.15 * (high - low) or 1.0
    return np.linspace(low - margin, high + margin, count)
