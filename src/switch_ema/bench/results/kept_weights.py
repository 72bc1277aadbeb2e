"""Loads the weights that a comparison kept, and their trajectories."""

import json
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import send_to_device, set_seed
from torch import Tensor, nn

from switch_ema.averaging.model.names import load_weights, unwrap
from switch_ema.bench.errors import UsageError
from switch_ema.bench.loaders import feed
from switch_ema.bench.loading import create_task
from switch_ema.bench.method_names import CONTROL
from switch_ema.bench.plan.cells import Cell
from switch_ema.bench.plan.sweep_points import load_points, plan_points
from switch_ema.bench.results.folder import open_run, threads_of
from switch_ema.bench.spec import parse_method_spec
from switch_ema.bench.stacking.tasks import StackedTask
from switch_ema.bench.task import (
    EVALUATION_PURPOSE,
    SeedBatchTask,
    Task,
    epoch_seed,
)
from switch_ema.bench.train.checkpoints import checkpoint_path, load_checkpoint
from switch_ema.bench.train.context import RunContext, using_threads
from switch_ema.bench.train.loop import Training
from switch_ema.bench.train.precision import resolved_precision, using_tf32
from switch_ema.bench.train.task_checks import make_loader, make_model, measure
from switch_ema.bench.train.trajectory import load_trajectory
from switch_ema.bench.train.weights import (
    Weights,
    read_weights,
    weights_of,
    weights_path,
)

PAPER = ("plain", "ema", "swa", "switch-ema")
"""Methods that the paper plots side by side."""


@dataclass(frozen=True, kw_only=True)
class KeptTask:
    """One task of a comparison with the weights of its methods for one seed."""

    name: str
    """Task as typed, with options."""
    seed: int
    task: Task
    model: nn.Module
    """Provides the architecture; its weights are arbitrary."""
    weights: dict[str, Weights]
    """State dict that each method is evaluated with."""
    trajectory: dict[str, list[Weights]]
    """Parameters of each method, epoch by epoch; empty if not saved."""
    threads: int
    """Torch threads that the run was trained with."""

    def batches(self, count: int) -> list[Any]:
        """Return the first training batches, merged, on the model's device."""
        device = next(self.model.parameters()).device
        return joined(list(islice(feed(self.task.train_loader(0), device), count)))

    def is_finite(self, method: str) -> bool:
        """Whether a method's weights are finite."""
        return all(
            bool(value.isfinite().all()) for value in self.weights[method].values()
        )

    @property
    def is_stacked(self) -> bool:
        """Whether parameters have a leading seed dimension, here of size 1."""
        return isinstance(self.task, SeedBatchTask)


def joined(batches: list[Any], most: int = 1024) -> list[Any]:
    """Merge batches with one label per example, which keeps the mean loss.

    Batches of any other form are returned unchanged.

    >>> few = joined([(torch.zeros(4, 2), torch.zeros(4))] * 3)
    >>> [tuple(tensor.shape) for tensor in few[0]]
    [(12, 2), (12,)]
    """
    if not batches or not all(map(_has_one_label_each, batches)):
        return batches
    parts = [torch.cat(column) for column in zip(*batches, strict=True)]
    pieces = (torch.split(part, most) for part in parts)
    return list(zip(*pieces, strict=True))


def _has_one_label_each(batch: Any) -> bool:
    return (
        isinstance(batch, (tuple, list))
        and len(batch) == 2
        and all(isinstance(part, Tensor) for part in batch)
        and batch[1].ndim == 1
        and len(batch[0]) == len(batch[1])
    )


def load_kept(
    folder: Path,
    methods: tuple[str, ...] = (),
    device: str | None = None,
    *,
    seed: int | None = None,
) -> list[KeptTask]:
    """Load the weights that a run kept.

    Args:
        folder: the run folder.
        methods: methods to load; by default those that the paper compares.
        device: cpu or cuda; None lets Accelerate choose.
        seed: seed to load; by default the first one.
    """
    config, results = open_run(folder)
    with closing(results):
        points = load_points(results.meta())
        context = RunContext(folder, device, threads=threads_of(results))
    wanted = config.first_seed if seed is None else seed
    kept: dict[tuple[str, str | None], KeptTask] = {}
    known: dict[str, None] = {}
    for cell in plan_points(config, points):
        known |= dict.fromkeys(cell.methods)
        has_checkpoint = checkpoint_path(folder, cell).exists()
        if cell.seeds[0] == wanted and has_checkpoint:
            found = _load(cell, context)
        elif wanted in cell.seeds and (files := _kept_files(folder, cell, wanted)):
            found = _load_files(cell, context, wanted, files)
        else:
            continue
        same = kept.setdefault((cell.task, cell.optimizer), found)
        same.weights.update(found.weights)
        same.trajectory.update(found.trajectory)
    if not kept:
        raise UsageError(
            f"{folder} has no weights of seed {wanted}: the run is unfinished, or used "
            "--keep-checkpoints none; --keep last keeps those of every seed."
        )
    chosen = _chosen(methods, list(known))
    return [_with_methods(task, chosen) for task in kept.values()]


def _kept_files(folder: Path, cell: Cell, seed: int) -> dict[str, Path]:
    """Return the files with the final weights of a seed, by method."""
    paths = {label: weights_path(folder, cell, label, seed) for label in cell.methods}
    return {label: path for label, path in paths.items() if path.is_file()}


class _KeptModel:
    """A network of a cell, without its training, to load kept weights into."""

    def __init__(self, cell: Cell, context: RunContext, seed: int) -> None:
        self._epoch = cell.recipe.epochs - 1
        set_seed(seed)  # as in training, for the same data
        self.task = create_task(cell.task, (seed,), split=cell.evaluated_split)
        AcceleratorState._reset_state()
        precision = resolved_precision(cell.recipe.precision, context.device)
        accelerator = Accelerator(
            cpu=context.device == "cpu", mixed_precision=precision
        )
        set_seed(seed)
        self.model: nn.Module = accelerator.prepare_model(
            make_model(self.task), evaluation_mode=True
        )
        # Pre-training tasks evaluate differently after the last epoch.
        make_loader(self.task, self._epoch)

    @torch.no_grad()
    def measure(self, weights: Weights) -> dict[str, float]:
        """Evaluate weights as they were after the last epoch."""
        load_weights(self.model, weights)
        self.model.eval()
        set_seed(epoch_seed(self.task.seed, self._epoch, EVALUATION_PURPOSE))
        return {name: v[0] for name, v in measure(self.task, self.model, 1).items()}


def _load_files(
    cell: Cell, context: RunContext, seed: int, files: Mapping[str, Path]
) -> KeptTask:
    kept = _KeptModel(cell, context, seed)
    device = next(kept.model.parameters()).device
    weights: dict[str, Weights] = {
        label: send_to_device(read_weights(path)[0], device)
        for label, path in files.items()
        if parse_method_spec(label).name != CONTROL
    }
    model = unwrap(kept.model)
    return _kept(cell, kept.task, model, weights, {}, context.threads, seed)


def _load(cell: Cell, context: RunContext) -> KeptTask:
    # A whole training, since averages need their averagers, some averagers need the
    # optimizer (optimizer_state=reset), and Accelerate sets the model's precision.
    training = Training(cell, context)
    load_checkpoint(training, with_values=False)
    model = unwrap(training.model)
    weights: dict[str, Weights] = {}
    indices: dict[str, int] = {}
    """Index of each method's first network in a stack."""
    for attached, averager in training.averagers.items():
        if parse_method_spec(attached).name != CONTROL:
            own = model.state_dict()
            found = own if averager is None else averager.averaged_state_dict()
            for label, networks in training.shown[attached].items():
                weights[label] = {name: value.clone() for name, value in found.items()}
                indices[label] = networks.start
    points = load_trajectory(context.folder, cell)
    trajectory: dict[str, list[Weights]] = {
        label: list(points[label]) for label in weights if label in points
    }
    task = training.tested
    if not isinstance(task, SeedBatchTask):
        return _kept(cell, task, model, weights, trajectory, context.threads)
    set_seed(cell.seeds[0])  # as in training, for the same data
    first = create_task(cell.task, cell.seeds[:1], split=cell.evaluated_split)
    set_seed(cell.seeds[0])
    network = first.model().to(training.accelerator.device)
    weights = {
        label: weights_of(training.task, model, found, indices[label])
        for label, found in weights.items()
    }
    if not isinstance(task, StackedTask):  # their trajectories are of the first seed
        trajectory = {
            label: [weights_of(task, model, point, 0) for point in points]
            for label, points in trajectory.items()
        }
    return _kept(cell, first, network, weights, trajectory, context.threads)


def _kept(
    cell: Cell,
    task: Task,
    model: nn.Module,
    weights: dict[str, Weights],
    trajectory: dict[str, list[Weights]],
    threads: int,
    seed: int | None = None,
) -> KeptTask:
    return KeptTask(
        name=cell.task,
        seed=cell.seeds[0] if seed is None else seed,
        task=task,
        model=model,
        weights=weights,
        trajectory=trajectory,
        threads=threads,
    )


def _chosen(methods: tuple[str, ...], known: list[str]) -> list[str]:
    for method in methods:
        if method not in known:
            raise UsageError(
                f"the run has no method {method!r}; it has {', '.join(known)}."
            )
    usual = [label for label in known if label.partition(":")[0] in PAPER]
    return list(methods) or (usual if len(usual) > 1 else known)


def _with_methods(kept: KeptTask, methods: list[str]) -> KeptTask:
    return replace(
        kept,
        weights={m: kept.weights[m] for m in methods if m in kept.weights},
        trajectory={m: kept.trajectory[m] for m in methods if m in kept.trajectory},
    )


@dataclass(frozen=True, kw_only=True)
class EvaluatedAgain:
    """One metric of kept weights: as stored with them, and measured again."""

    task: str
    method: str
    seed: int
    metric: str
    stored: float | None
    value: float


def evaluate_kept(folder: Path, device: str | None = None) -> Iterator[EvaluatedAgain]:
    """Evaluate all kept weights of a run again, without training.

    Args:
        folder: the run folder.
        device: cpu or cuda; None lets Accelerate choose.

    Raises:
        UsageError: the run has no weights, or a file is damaged.
    """
    config, results = open_run(folder)
    with closing(results):
        points = load_points(results.meta())
        context = RunContext(folder, device, threads=threads_of(results))
    found = [
        (cell, seed, files)
        for cell in plan_points(config, points)
        for seed in cell.seeds
        if (files := _kept_files(folder, cell, seed))
    ]
    if not found:
        raise UsageError(f"{folder} has no kept weights; --keep last keeps them.")
    for cell, seed, files in found:
        with using_threads(context.threads), using_tf32(cell.recipe.tf32):
            kept = _KeptModel(cell, context, seed)
            for label, path in files.items():
                weights, header = read_weights(path)
                stored = json.loads(header.get("values", "{}"))
                for metric, value in kept.measure(weights).items():
                    yield EvaluatedAgain(
                        task=cell.task,
                        method=label,
                        seed=seed,
                        metric=metric,
                        stored=stored.get(metric),
                        value=value,
                    )
