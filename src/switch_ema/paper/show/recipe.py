"""The recipe of a row, to be compared with the paper's appendix."""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch.optim import Optimizer

from switch_ema.averaging.schedules.auto import surviving_share
from switch_ema.bench.errors import UsageError
from switch_ema.bench.loading import create_task, load_task_class
from switch_ema.bench.methods import method_of
from switch_ema.bench.plan.cells import Cell, make_plan
from switch_ema.bench.task import Task
from switch_ema.bench.text import counted
from switch_ema.bench.train.description import (
    describe_model,
    describe_optimizer,
    describe_schedule,
)
from switch_ema.bench.train.precision import describe_precision, resolved_precision
from switch_ema.bench.train.task_checks import make_loader, make_optimizer
from switch_ema.paper.reproduce.plan import RowPlan
from switch_ema.paper.show.published_data import (
    published_batches,
    published_data,
    task_of_sample,
)
from switch_ema.zoo.models.detection.operations import multiply_adds
from switch_ema.zoo.tasks.detection.detection import Detection

Lines = Iterator[tuple[str, str]]
"""Names of settings, and what they are."""


def row_recipe(plan: RowPlan) -> Lines:
    """Describe each task of a row: what its options, its recipe and its network say.

    The data of the paper need not be there: networks and groups of parameters are those
    of a sample with the same image sizes, classes and words, and steps follow from the
    published size.
    """
    seed = plan.config.seeds_by_round[0][0]
    first = make_plan(dataclasses.replace(plan.config, stack="off"))
    for text in plan.config.tasks:
        cells = [c for c in first if c.task == text and c.seeds[0] == seed]
        recipe = cells[0].recipe
        yield "Task", text
        yield "Initial weights", _start(text)
        yield "Epochs", str(recipe.epochs)
        yield "Learning rate", describe_schedule(recipe)
        precision = resolved_precision(recipe.precision, None)
        computed = describe_precision(recipe, precision) or "float32"
        if recipe.precision == "auto":
            computed += " here; autocast to bf16 on a GPU that computes in it"
        yield "Precision", computed
        task, batches, source = _task(text, seed)
        yield "Data", source
        yield from _of_task(task, cells[0])
        steps = math.ceil(batches / recipe.accumulate)
        yield "Steps per epoch", f"{steps:,}"
        for cell in cells:
            for label in cell.methods:
                yield f"Method {label}", _method(label, cell, steps)


def _start(text: str) -> str:
    task_class, spec = load_task_class(text)
    try:
        return task_class.start_for(spec.options) or "random"
    except UsageError as error:
        return f"missing: {error}"


def _task(text: str, seed: int) -> tuple[Task, int, str]:
    """Return a task, its batches per epoch, and the data that they are counted of."""
    names = published_data(text)
    task = task_of_sample(text, seed) if names else create_task(text, (seed,))
    published = published_batches(text, task) if names else None
    if published is None:
        batches = len(make_loader(task, 0))
        given = names or [str(getattr(task, "dataset", "the task's own"))]
        return task, batches, " and ".join(given)
    trained, batches = published
    return task, batches, f"{' and '.join(names)}, {trained:,} training examples"


def _of_task(task: Task, cell: Cell) -> Lines:
    with torch.device("meta"):  # only shapes are needed
        model = task.model()
    optimizer = make_optimizer(task, model, cell.optimizer, cell.recipe.layer_decay)
    yield "Network", describe_model(model, 1)
    if isinstance(task, Detection):  # at the resolution of Appendix B.3
        height, width = 800, 1280
        count = multiply_adds(model, height, width) / 1e9
        yield "Multiply-adds", f"{count:.1f} billion at {height} x {width} pixels"
    # Settings of the zoo's tasks: batches, sizes, augmentation.
    for name in ("procedure", "settings", "paper", "schedule", "scale"):
        found: Any = getattr(task, name, None)
        if dataclasses.is_dataclass(found):
            yield name.capitalize(), _fields(found)
    batch = getattr(task, "batch", None)
    if batch is not None:
        count = cell.recipe.accumulate
        each = "1 batch" if count == 1 else f"gradients of {count} batches"
        yield "Batch", f"{batch:,} examples; {each} per step"
    augmentation = getattr(task, "augmentation", "")
    if augmentation:
        yield "Augmentation", augmentation
    yield "Optimizer", describe_optimizer(optimizer)
    for number, group in enumerate(optimizer.param_groups, start=1):
        yield f"Parameter group {number}", _group(group, optimizer)


def _fields(settings: Any) -> str:
    """List the settings that are on."""
    found = {
        f.name: getattr(settings, f.name)
        for f in dataclasses.fields(settings)
        if f.name not in ("methods", "recipe")  # shown on their own
    }
    return ", ".join(
        f"{name} {value}"
        for name, value in found.items()
        if value is not None and value is not False and value != 0
    )


def _group(group: dict[str, Any], optimizer: Optimizer) -> str:
    tensors = counted(len(group["params"]), "tensor")
    values = sum(p.numel() for p in group["params"])
    decay = group.get("weight_decay", optimizer.defaults.get("weight_decay", 0))
    return (
        f"{tensors}, {values:,} values, learning rate {group['lr']:g}, "
        f"weight decay {decay:g}"
    )


def _method(label: str, cell: Cell, steps: int | None) -> str:
    """Describe a method's options and, of Switch EMA, what survives a switch."""
    spec = method_of(label).spec
    options = {**cell.recipe.methods.get(spec.name, {}), **spec.options}
    text = ", ".join(f"{key} {value}" for key, value in options.items()) or "defaults"
    if cell.recipe.extra_epochs:
        text += f", {counted(cell.recipe.extra_epochs, 'epoch')} more"
    decay, every = options.get("decay"), options.get("switch_every", 1)
    if spec.name != "switch-ema" or steps is None:
        return text
    if not isinstance(decay, float) or not isinstance(every, int):
        return text
    share = surviving_share(decay, steps * every)
    return f"{text}; a switch keeps {share:.1%} of the progress since the last one"
