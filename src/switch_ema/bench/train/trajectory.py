"""Saves the weights of every epoch, to plot trajectories."""

from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from switch_ema._files import write_atomically
from switch_ema.averaging.model.names import unwrap
from switch_ema.bench.errors import UsageError
from switch_ema.bench.stacking.modules import Stacked
from switch_ema.bench.stacking.tasks import StackedTask

if TYPE_CHECKING:
    from switch_ema.bench.plan.cells import Cell
    from switch_ema.bench.train.loop import Training

LARGEST = 64 << 20
"""Bytes of a whole trajectory; larger ones are not saved."""

_BETWEEN = "\n"
"""Separates method and parameter; neither name has line breaks."""

Weights = dict[str, Tensor]


def save_point(training: "Training") -> None:
    """Save the current parameters of every method, unless they are too large."""
    model = unwrap(training.model)

    def shown(weights: Weights, network: int = 0) -> Weights:
        if not isinstance(training.task, StackedTask):
            return weights
        return cast(Stacked, model).state_of(weights, network)  # the first seed alone

    parameters: Weights = dict(model.named_parameters())
    live = shown(parameters)
    size = sum(parameter.nbytes for parameter in live.values())
    if size * len(training.cell.methods) * (training.cell.recipe.epochs + 1) > LARGEST:
        return
    point: Weights = {}
    for attached, averager in training.averagers.items():
        found = parameters if averager is None else averager.averaged_state_dict()
        for label, networks in training.shown[attached].items():
            weights = shown(found, networks.start)
            # Cloned, since safetensors refuses views that share a buffer.
            point |= {
                f"{label}{_BETWEEN}{name}": weights[name]
                .detach()
                .cpu()
                .clone(memory_format=torch.contiguous_format)
                for name in live
            }
    folder = _folder(training.context.folder, training.cell)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(
        folder / f"{training.epoch:06d}.safetensors",
        lambda unfinished: save_file(point, unfinished),
    )


def load_trajectory(folder: Path, cell: "Cell") -> dict[str, list[Weights]]:
    """Read the parameters of each method, epoch by epoch; empty if not saved."""
    trajectory: dict[str, list[Weights]] = {}
    for path in sorted(_folder(folder, cell).glob("*.safetensors")):
        point = _read(path)
        for label, weights in point.items():
            trajectory.setdefault(label, []).append(weights)
    return trajectory


def _read(path: Path) -> dict[str, Weights]:
    point: dict[str, Weights] = {}
    try:
        with safe_open(path, framework="pt") as file:
            for key in file.keys():  # noqa: SIM118 - not a mapping
                label, _, name = key.partition(_BETWEEN)
                point.setdefault(label, {})[name] = file.get_tensor(key)
    except (SafetensorError, OSError, ValueError, RuntimeError):
        raise UsageError(
            f"{path} is damaged; delete its folder to continue without the trajectory."
        ) from None
    return point


def _folder(folder: Path, cell: "Cell") -> Path:
    return folder / "cells" / f"{cell.id}.trajectory"
