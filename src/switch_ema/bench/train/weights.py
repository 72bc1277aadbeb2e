"""Weights of finished trainings as safetensors files, with their provenance.

Each file has the names and types of the model's own state dict, so
``model.load_state_dict(safetensors.torch.load_file(path))`` loads it. Its header says
how the weights were trained.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, cast

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from switch_ema._files import write_atomically
from switch_ema.averaging.averager import Averager
from switch_ema.averaging.model.names import unwrap
from switch_ema.averaging.offline.provenance import provenance, without_prefix
from switch_ema.bench.errors import UsageError
from switch_ema.bench.spec import parse_task, task_slug
from switch_ema.bench.stacking.modules import Stacked
from switch_ema.bench.stacking.tasks import StackedTask
from switch_ema.bench.task import SeedBatchTask, Task

if TYPE_CHECKING:
    from switch_ema.bench.plan.cells import Cell
    from switch_ema.bench.train.loop import Training

Weights = Mapping[str, Tensor]

_FOLDER = "weights"
_LIVE = ".live"


def weights_path(
    folder: Path, cell: "Cell", method: str, seed: int, epoch: int | None = None
) -> Path:
    """Path of a method's weights; without an epoch, those at the end.

    >>> from switch_ema.bench.plan.cells import Cell
    >>> from switch_ema.bench.recipe import Recipe
    >>> cell = Cell("digits", None, Recipe(), ("plain",), (0,))
    >>> name = weights_path(Path("run"), cell, "ema:decay=0.99", 0).name
    >>> name.replace(cell.id[:6], "ID")
    'digits-ID-seed-0-ema-decay=0.99.safetensors'
    """
    label = re.sub(r"[^\w.=@*+-]+", "-", method)
    at = "" if epoch is None else f"-epoch-{epoch}"
    task = task_slug(parse_task(cell.task).name)  # the cell's id has the options
    name = f"{task}-{cell.id[:6]}-seed-{seed}-{label}{at}.safetensors"
    return folder / _FOLDER / name


def save_weights(training: "Training", epoch: int | None = None) -> None:
    """Write every method's weights of every seed, and the live ones if none has them.

    Args:
        training: after an epoch.
        epoch: number in the file names; None for the last epoch.
    """
    cell, folder = training.cell, training.context.folder
    (folder / _FOLDER).mkdir(parents=True, exist_ok=True)
    model = unwrap(training.model)

    def save(label: str, averager: Averager | None, network: int, name: str) -> None:
        found = (
            model.state_dict() if averager is None else averager.averaged_state_dict()
        )
        for index, seed in enumerate(cell.seeds):
            own = weights_of(training.task, model, found, network + index)
            header = _provenance(training, label, averager, index)
            _write(weights_path(folder, cell, name, seed, epoch), own, header)

    for attached, averager in training.averagers.items():
        for label, networks in training.shown[attached].items():
            save(label, averager, networks.start, label)
    if None not in training.averagers.values() and len(cell.variants) == 1:
        save(cell.methods[0], None, 0, f"{cell.methods[0]}{_LIVE}")


def weights_of(task: Task, model: nn.Module, weights: Weights, network: int) -> Weights:
    """Return the weights of one network of a stack; those of a single one as they are.

    Args:
        task: the task in training.
        model: its model.
        weights: a state dict of the model.
        network: index in the stack.
    """
    if isinstance(task, StackedTask):
        return cast(Stacked, model).state_of(dict(weights), network)
    if isinstance(task, SeedBatchTask):  # its first dimension is the seed
        return {name: value[network : network + 1] for name, value in weights.items()}
    return weights


def read_weights(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read a file of :func:`save_weights`: its tensors, and its header."""
    try:
        with safe_open(path, framework="pt") as file:
            names = file.keys()
            tensors = {name: file.get_tensor(name) for name in names}
            return tensors, without_prefix(file.metadata() or {})
    except (SafetensorError, OSError, ValueError, RuntimeError) as error:
        raise UsageError(f"{path} cannot be read: {error}.") from None


def _provenance(
    training: "Training", label: str, averager: Averager | None, index: int
) -> dict[str, str]:
    """Say how the weights of one seed were trained."""
    cell, result = training.cell, training.result
    epochs = training.epoch
    steps = epochs * training.steps_per_epoch
    facts = {
        "method": label,
        "options": result.options[label],
        "steps": str(steps if averager is None else averager.steps),
        "epochs": str(epochs),
        "seed": str(cell.seeds[index]),
        "task": cell.task,
        "cell": cell.id,
        "values": json.dumps(_values(result.values.get(label, {}), index)),
        "commit": training.context.commit,
        **{name.lower(): text for name, text in result.trained.items()},
    }
    if averager is None:
        return provenance("live", facts)
    decay, switches = averager.current_decay, averager.switches
    return provenance("average", facts, decay=decay, switches=switches)


def _values(
    metrics: Mapping[str, list[list[float]]], index: int
) -> dict[str, float | None]:
    """Return the latest values of one seed; None where it is not a number."""
    latest = {name: epochs[-1][index] for name, epochs in metrics.items() if epochs}
    return {name: value if value == value else None for name, value in latest.items()}


def _write(path: Path, weights: Weights, header: dict[str, str]) -> None:
    # Cloned, since the format refuses tied weights, which share memory.
    dense = {n: v.detach().cpu().contiguous().clone() for n, v in weights.items()}
    write_atomically(path, lambda file: save_file(dense, file, header))
