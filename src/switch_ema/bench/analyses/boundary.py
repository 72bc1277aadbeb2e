"""Trains on 2D tasks and measures the decision boundaries."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from switch_ema.analysis.boundary.contours import Floats
from switch_ema.analysis.boundary.measures import (
    Boundary,
    PlaneGrid,
    accuracy,
    calibration_errors,
    measure_boundaries,
)
from switch_ema.analysis.boundary.summary import MethodBoundaries
from switch_ema.bench.compare import Watcher, run_comparison
from switch_ema.bench.errors import UsageError
from switch_ema.bench.execute.options import RunOptions
from switch_ema.bench.loading import (
    create_task,
    import_task,
    load_task_class,
    registered_tasks,
)
from switch_ema.bench.optimizers.step import set_mode
from switch_ema.bench.plan.cells import Cell, make_plan
from switch_ema.bench.plan.config import MOST_EPOCHS, CompareConfig
from switch_ema.bench.results.folder import stored_version
from switch_ema.bench.task import PlaneTask
from switch_ema.bench.train.context import RunContext, using_threads
from switch_ema.bench.train.loop import Training

_SAVES_EVERY = 2.0  # seconds; an epoch takes milliseconds, and so does saving it
_AT_ONCE = 4096  # points; limits the memory for the hidden layers of a hundred seeds


@dataclass(frozen=True, kw_only=True)
class BoundaryComparison:
    """Boundaries of all methods on the same data, per seed."""

    task: str
    """As typed, options included."""
    epochs: int
    seeds: tuple[int, ...]
    grid: PlaneGrid
    """Window around the points of all seeds, shared by all."""
    x: Floats
    """Labelled points, (seeds, points, 2)."""
    y: Floats
    """Their classes, (seeds, points)."""
    x_test: Floats
    y_test: Floats
    methods: tuple[MethodBoundaries, ...]
    """In the order asked for; the first is the baseline."""
    problems: tuple[str, ...]
    """Trainings that diverged, one sentence each; their numbers are NaN."""


@dataclass(frozen=True)
class _Trained:
    """Results of one method for the seeds of one cell."""

    boundaries: tuple[Boundary, ...]
    probabilities: Floats


def compare_boundaries(
    task: str = "circles",
    methods: Sequence[str] = ("plain", "ema", "switch-ema"),
    seeds: int = 24,
    *,
    first_seed: int = 0,
    epochs: int | None = None,
    optimizer: str | None = None,
    evaluate_every: int | None = MOST_EPOCHS,
    grid_size: int = 201,
    folder: Path | None = None,
    watcher: Watcher | None = None,
) -> BoundaryComparison:
    """Train every method with the same seeds and measure its boundaries.

    Args:
        task: circles or moons, with options (``moons:noise=0.2,lr=0.1``), or a
            user-defined subclass of ``PlaneTask``.
        methods: names with options, such as ``ema:decay=0.99``; the first is the
            baseline.
        seeds: number of seeds, at least 1; intervals need 2.
        first_seed: the first of consecutive seeds.
        epochs: default: the task's own.
        optimizer: name with options; default: the task's own.
        evaluate_every: must match the run in the folder; by default only at the end,
            because only the final weights are measured.
        grid_size: points along the longer side of the window, at least 10.
        folder: the run's folder, which is resumed; default: a temporary one.
        watcher: receives progress events.
    """
    if grid_size < 10:
        raise UsageError(f"grid_size must be at least 10, got {grid_size}.")
    _check_plane(task)
    config = CompareConfig(
        tasks=(task,),
        methods=tuple(methods),
        seeds=seeds,
        first_seed=first_seed,
        epochs=epochs,
        optimizer=optimizer,
        evaluate_every=evaluate_every,
    )
    if folder is not None:
        config = config.extending(stored_version(config, folder))
    cells = make_plan(config)
    chosen = tuple(range(first_seed, first_seed + config.seeds))
    data = cast(PlaneTask, create_task(task, chosen))
    x, y, x_test, y_test = (
        part.double().numpy() for part in (data.x, data.y, data.x_eval, data.y_eval)
    )
    grid = PlaneGrid.around(np.concatenate([x, x_test], axis=1), size=grid_size)
    with _run_folder(folder) as run:
        problems = _train(config, cells, run, watcher)
        with using_threads(RunContext.threads):  # as it was trained
            found = _measure_cells(cells, run, grid)
    return BoundaryComparison(
        task=task,
        epochs=cells[0].recipe.epochs,
        seeds=chosen,
        grid=grid,
        x=x,
        y=y,
        x_test=x_test,
        y_test=y_test,
        # An optimizer with a built-in average adds it as the last method.
        methods=tuple(
            _join(label, found[label], y_test)
            for label in dict.fromkeys((*methods, *found))
        ),
        problems=problems,
    )


def _check_plane(task: str) -> None:
    task_class, spec = load_task_class(task)
    if not issubclass(task_class, PlaneTask):
        known = [
            name
            for name in registered_tasks()
            if issubclass(import_task(name), PlaneTask)
        ]
        raise UsageError(
            f"boundaries need a 2D task, which {spec.name} is not; "
            f"choose {' or '.join(known)}."
        )


@contextmanager
def _run_folder(folder: Path | None) -> Iterator[Path]:
    if folder is not None:
        yield folder
        return
    with TemporaryDirectory(prefix="switch-ema-") as temporary:
        yield Path(temporary) / "run"


def _train(
    config: CompareConfig, cells: list[Cell], folder: Path, watcher: Watcher | None
) -> tuple[str, ...]:
    """Train the unfinished cells; return problems, one sentence each."""
    options = RunOptions(
        out=folder.parent,
        name=folder.name,
        executor="inline",
        device="cpu",
        keep_checkpoints="all",
    )
    run = run_comparison(
        config,
        options,
        cells=cells,
        watcher=watcher,
        keeps_trajectory=False,
        saves_every=_SAVES_EVERY,
    )
    if run.error is not None:
        raise run.error
    return tuple(problem for task in run.summary.tasks for problem in task.problems)


def _measure_cells(
    cells: Sequence[Cell], folder: Path, grid: PlaneGrid
) -> dict[str, list[_Trained]]:
    """Measure the kept weights of each cell; return the results by method."""
    found: dict[str, list[_Trained]] = {}
    for cell in cells:
        training = Training(cell, RunContext(folder, "cpu"))
        training.run()  # loads the checkpoint; retrains if it is damaged
        training.model.eval()
        set_mode(training.optimizer, training=False)
        for label in cell.methods:
            found.setdefault(label, []).append(_measure(training, label, grid))
    return found


def _measure(training: Training, label: str, grid: PlaneGrid) -> _Trained:
    """Measure the final weights of a method."""
    tested = cast(PlaneTask, training.task).x_eval
    if training.result.status != "done":
        # A diverged seed stops its stack, so none of its seeds finished.
        shape = tuple(tested.shape[:2])
        return _Trained((Boundary(),) * shape[0], np.full(shape, math.nan))
    averager = training.averagers[label]
    model = training.model
    with averager.averaged() if averager is not None else nullcontext():
        boundaries = measure_boundaries(
            lambda points: probabilities_of(model, torch.as_tensor(points)), grid
        )
        return _Trained(boundaries, probabilities_of(model, tested))


@torch.no_grad()
def probabilities_of(model: nn.Module, points: Tensor) -> Floats:
    """Compute the probability of class 1, (seeds, points), in float64.

    Args:
        model: a stack with two outputs per network.
        points: (points, 2) for all networks, or (seeds, points, 2).
    """
    parts = []
    for some in torch.split(points.float(), _AT_ONCE, dim=-2):
        outputs = model(some).double()
        # From the logit difference: float32 cannot resolve probabilities near 1.
        parts.append(torch.sigmoid(outputs[..., 1] - outputs[..., 0]))
    return cast(Floats, torch.cat(parts, dim=-1).numpy())


def _join(label: str, parts: Sequence[_Trained], y_test: Floats) -> MethodBoundaries:
    """Concatenate the cells of one method, which are ordered by seed."""
    probabilities = np.concatenate([part.probabilities for part in parts])
    return MethodBoundaries(
        method=label,
        boundaries=tuple(one for part in parts for one in part.boundaries),
        probabilities=probabilities,
        accuracy=accuracy(probabilities, y_test),
        calibration_error=calibration_errors(probabilities, y_test),
    )
