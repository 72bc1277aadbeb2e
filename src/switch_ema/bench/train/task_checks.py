"""Checks what a task's methods return, so that errors name the user's method."""

from collections.abc import Mapping
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from switch_ema.bench.errors import UsageError
from switch_ema.bench.optimizers.catalog import choose_optimizer, create_optimizer
from switch_ema.bench.recipe import is_usable
from switch_ema.bench.spec import parse_spec
from switch_ema.bench.stacking.modules import Stacked
from switch_ema.bench.stacking.tasks import StackedTask
from switch_ema.bench.task import Loader, SeedBatchTask, Task
from switch_ema.bench.train.values import Values

TRIVIAL = "trivial predictor"
"""Default name of a trivial predictor."""

Trivial = dict[str, dict[str, float]]
"""Scores of trivial predictors, by predictor and metric."""


def check_seed(task: Task) -> None:
    """Refuse a task whose constructor did not call ``super().__init__``."""
    if not hasattr(task, "seed"):
        raise _wrong(task, "__init__", "must call super().__init__(seed)")


def make_model(task: Task) -> nn.Module:
    """Create a task's model."""
    model: Any = task.model()
    if not isinstance(model, nn.Module):
        raise _wrong(task, "model", "must return a module", model)
    return model


def load_initial_weights(task: Task, model: nn.Module) -> str:
    """Load a task's initial weights into the model; return their origin.

    Each seed of a stack has its own initial weights.
    """
    if isinstance(task, StackedTask):
        stack = cast(Stacked, model)
        origins = [
            load_initial_weights(own, stack.alone(index))
            for index, own in enumerate(task.tasks)
        ]
        return origins[0]
    found: Any = task.initial_weights()
    if found is None:
        return ""
    pair = isinstance(found, tuple) and len(found) == 2
    if not (pair and isinstance(found[0], Mapping) and isinstance(found[1], str)):
        wanted = "must return None, or a state dict and a text with its origin"
        raise _wrong(task, "initial_weights", wanted, found)
    state: Mapping[str, Tensor] = found[0]
    origin: str = found[1]
    try:
        unexpected = model.load_state_dict(dict(state), strict=False).unexpected_keys
    except RuntimeError as error:  # torch lists mismatched shapes line by line
        reason = str(error).strip().rpartition("\n")[2].strip().rstrip(".")
        raise _wrong(task, "initial_weights", f"does not fit: {reason}") from None
    if unexpected:
        shown = ", ".join(sorted(unexpected)[:3])
        what = f"has {len(unexpected)} entries that the model lacks, such as {shown}"
        raise _wrong(task, "initial_weights", what)
    return origin


def trivial_values(task: Task) -> Trivial:
    """Return the scores of a task's trivial predictors, by predictor."""
    given: Any = task.trivial()
    if not isinstance(given, Mapping):
        raise _wrong(task, "trivial", "must return a dict", given)
    named = all(isinstance(value, Mapping) for value in given.values())
    known = [metric.name for metric in task.metrics]
    found: Trivial = {}
    for name, values in given.items() if named else [(TRIVIAL, given)]:
        for metric, value in values.items():
            if metric not in known:
                wanted = f"may have values for {', '.join(known)}, got {metric!r}"
                raise _wrong(task, "trivial", wanted)
            try:
                number = float(value)
            except (TypeError, ValueError):
                wanted = f"must give one number for {metric!r}"
                raise _wrong(task, "trivial", wanted, value) from None
            found.setdefault(str(name), {})[metric] = number
    return found


def sample_pictures(task: Task, model: nn.Module) -> dict[str, Tensor]:
    """Return a task's sample images by caption; a single row has an empty caption.

    Values are clamped to [0, 1]; NaN becomes 0.
    """
    given: Any = task.samples(model)
    if given is None:
        return {}
    rows = given if isinstance(given, Mapping) else {"": given}
    found = {}
    for caption, pictures in rows.items():
        wanted = "must return pictures of shape N x C x H x W with C = 1 or 3"
        if not isinstance(pictures, Tensor):
            raise _wrong(task, "samples", wanted, pictures)
        if pictures.ndim != 4 or pictures.shape[1] not in (1, 3) or not len(pictures):
            raise _wrong(task, "samples", wanted, pictures)
        finite = pictures.detach().float().cpu().nan_to_num(0.0)
        found[str(caption)] = finite.clamp(0, 1)
    return found


def make_optimizer(
    task: Task, model: nn.Module, name: str | None, layer_decay: float | None
) -> Optimizer:
    """Create the named optimizer, or the task's own if there is no name."""
    chosen = choose_optimizer(name, layer_decay)
    if chosen is not None:
        make = partial(create_optimizer, parse_spec(chosen), layer_decay=layer_decay)
        if isinstance(task, StackedTask):
            return cast(Stacked, model).make_optimizer(make)
        return make(model)
    optimizer: Any = task.optimizer(model)
    if not isinstance(optimizer, Optimizer):
        raise _wrong(task, "optimizer", "must return a torch Optimizer", optimizer)
    return optimizer


def make_loader(task: Task, epoch: int) -> Loader:
    """Return a task's batches of an epoch; there must be at least one."""
    loader: Any = task.train_loader(epoch)
    try:
        count = len(loader)
    except TypeError:
        wanted = "must return batches that have a len()"
        raise _wrong(task, "train_loader", wanted, loader) from None
    if count < 1:
        raise _wrong(task, "train_loader", "must return at least one batch, got none")
    batches: Loader = loader
    return batches


def loss_of(task: Task, model: nn.Module, batch: Any) -> Tensor:
    """Compute a task's loss of a batch."""
    loss: Any = task.loss(model, batch)
    if not isinstance(loss, Tensor) or loss.ndim > 0:
        raise _wrong(task, "loss", "must return a scalar tensor", loss)
    return loss


def measure(task: Task, model: nn.Module, seeds: int) -> dict[str, list[float]]:
    """Evaluate a model; return one value per seed for each metric."""
    measured: Any = task.evaluate(model)
    if not isinstance(measured, Mapping):
        raise _wrong(task, "evaluate", "must return a dict of metrics", measured)
    return {m.name: _values(task, m.name, measured, seeds) for m in task.metrics}


@torch.no_grad()
def count_examples(task: Task, model: nn.Module) -> int:
    """Count the examples per seed on which a classification task evaluates."""
    seeds = 1
    if isinstance(task, StackedTask):
        task, model = task.tasks[0], cast(Stacked, model).alone(0)
    elif isinstance(task, SeedBatchTask):
        seeds = len(task.seeds)
    was_training = model.training
    found = task.predictions(model.eval())
    model.train(was_training)
    if found is None:
        raise _wrong(task, "predictions", "must return outputs and labels", found)
    return len(found[1]) // seeds


def loss_and_error(task: Task, model: nn.Module) -> tuple[float, float]:
    """Return the mean negative log-likelihood and the error rate."""
    found = task.predictions(model)
    if found is None:
        raise _wrong(task, "predictions", "must return outputs and labels", found)
    outputs, labels = found
    wrong = (outputs.argmax(1) != labels).double().mean()
    return cross_entropy(outputs, labels).item(), wrong.item()


def name_missing(values: Values, seeds: tuple[int, ...]) -> str:
    """List final values that are not finite although the training loss was."""
    found = [
        f"{metric} of {method} with seed {seed}"
        for method, metrics in values.items()
        for metric, epochs in metrics.items()
        for seed, value in zip(seeds, epochs[-1], strict=True)
        if not is_usable(value)
    ]
    return f"evaluate returned no finite number for {', '.join(found)}" if found else ""


def _values(
    task: Task, metric: str, measured: Mapping[str, Any], seeds: int
) -> list[float]:
    if metric not in measured:
        given = ", ".join(map(str, measured)) or "nothing"
        raise _wrong(task, "evaluate", f"must measure {metric!r}, got {given}")
    value = measured[metric]
    wanted = f"must give {_numbers(seeds)} for {metric!r}"
    try:
        values = torch.as_tensor(value, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError):
        raise _wrong(task, "evaluate", wanted, value) from None
    if values.numel() != seeds or values.ndim > 1:
        raise _wrong(task, "evaluate", wanted, value)
    numbers: list[float] = values.reshape(-1).tolist()
    return numbers


def _numbers(seeds: int) -> str:
    return "one number" if seeds == 1 else f"{seeds} numbers, one per seed,"


def _wrong(task: Task, member: str, wanted: str, *got: Any) -> UsageError:
    end = "".join(f", got {_described(value)}" for value in got)
    return UsageError(f"{type(task).__name__}.{member} {wanted}{end}.")


def _described(value: Any) -> str:
    """Describe a value by its type, and its shape or length."""
    if value is None:
        return "None (is a return missing?)"
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, (list, tuple)):
        return f"a {type(value).__name__} of {len(value)}"
    return f"a {type(value).__name__}"
