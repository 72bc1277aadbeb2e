"""Loads the weights that a comparison kept, and their trajectories."""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, cast

import torch
from accelerate.utils import set_seed
from torch import Tensor, nn

from switch_ema.averaging.model.names import unwrap
from switch_ema.bench.errors import UsageError
from switch_ema.bench.loaders import feed
from switch_ema.bench.loading import create_task
from switch_ema.bench.method_names import CONTROL
from switch_ema.bench.plan.cells import Cell
from switch_ema.bench.plan.sweep_points import load_points, plan_points
from switch_ema.bench.results.folder import open_run, threads_of
from switch_ema.bench.spec import parse_method_spec
from switch_ema.bench.stacking.modules import Stacked
from switch_ema.bench.stacking.tasks import StackedTask
from switch_ema.bench.task import SeedBatchTask, Task
from switch_ema.bench.train.checkpoints import checkpoint_path, load_checkpoint
from switch_ema.bench.train.context import RunContext
from switch_ema.bench.train.loop import Training
from switch_ema.bench.train.trajectory import load_trajectory

Weights = Mapping[str, Tensor]
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
        if cell.seeds[0] != wanted or not checkpoint_path(folder, cell).exists():
            continue
        found = _load(cell, context)
        same = kept.setdefault((cell.task, cell.optimizer), found)
        same.weights.update(found.weights)
        same.trajectory.update(found.trajectory)
    if not kept:
        raise UsageError(
            f"{folder} has no checkpoints: the run is unfinished, or used "
            "--keep-checkpoints none."
        )
    chosen = _chosen(methods, list(known))
    return [_with_methods(task, chosen) for task in kept.values()]


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
    if isinstance(task, StackedTask):
        stack = cast(Stacked, model)
        weights = {
            label: stack.state_of(found, indices[label])
            for label, found in weights.items()
        }
    else:
        weights = {label: _first_seed(found) for label, found in weights.items()}
        trajectory = {
            label: [_first_seed(point) for point in points]
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
) -> KeptTask:
    return KeptTask(
        name=cell.task,
        seed=cell.seeds[0],
        task=task,
        model=model,
        weights=weights,
        trajectory=trajectory,
        threads=threads,
    )


def _first_seed(weights: Weights) -> Weights:
    return {name: value[:1] for name, value in weights.items()}


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
