"""Describe a training in words: network, optimizer, batches, schedule, methods."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from switch_ema.bench.optimizers.schedules import TAIL
from switch_ema.bench.recipe import Recipe
from switch_ema.bench.stacking.modules import Stacked
from switch_ema.bench.text import counted

# Optimizer options about the implementation, not about the update rule.
_HOW = {"params", "foreach", "maximize", "capturable", "differentiable", "fused"}
_SPELLED = {"lr": "learning rate", "weight_decay": "weight decay"}


BATCHES = ("Batch", "Workers")
"""Names of what is known from the first batch of an epoch."""


def describe_model(model: nn.Module, seeds: int) -> str:
    """Name a network and its number of parameters; in a stack, those of one seed.

    >>> describe_model(nn.Linear(30, 40), 1)
    'Linear, 1,240 parameters'
    """
    alone = model.alone(0) if isinstance(model, Stacked) else model
    count = sum(p.numel() for p in alone.parameters())
    count //= 1 if isinstance(model, Stacked) else seeds
    return f"{type(alone).__name__}, {count:,} parameters"


def describe_optimizer(optimizer: Optimizer) -> str:
    """Name an optimizer and its settings, before a schedule changes them.

    >>> from torch.optim import SGD
    >>> describe_optimizer(SGD([Tensor([1.0])], lr=0.1, momentum=0.9))
    'SGD, learning rate 0.1, momentum 0.9'
    """
    values: dict[str, list[Any]] = {"lr": []}
    for group in optimizer.param_groups:
        for key, value in group.items():
            # Some keep state in their groups; settings have defaults.
            is_setting = key in optimizer.defaults
            if is_setting and key not in _HOW and _is_set(key, value):
                values.setdefault(key, []).append(value)
    groups = len(optimizer.param_groups)
    settings = [
        f"{_SPELLED.get(key, key)} {_spread(found, groups)}"
        for key, found in values.items()
        if found
    ]
    return ", ".join([type(optimizer).__name__, *settings])


def describe_batches(
    batch: Any,
    steps: int,
    accumulate: int,
    *,
    stacked: bool,
    size: int | None = None,
) -> str:
    """Describe the batch size and the steps per epoch.

    The size is counted in ``batch`` unless it is given.

    >>> describe_batches((Tensor(64, 3), Tensor(64)), 16, 1, stacked=False)
    '64 examples, 16 steps an epoch'
    """
    epoch = f"{counted(steps, 'step')} an epoch"
    size = size or batch_size(batch, dimension=1 if stacked else 0)
    if size is None:
        return epoch
    times = f"{accumulate} x " if accumulate > 1 else ""
    return f"{times}{counted(size, 'example')}, {epoch}"


def describe_workers(parts: Sequence[int], backend: str, *, synchronised: bool) -> str:
    """Describe how batches were divided among workers.

    >>> describe_workers([22, 21, 21], "gloo", synchronised=False)
    '3, which took 22 + 21 + 21 of the 64 examples of each batch (DDP on gloo)'
    """
    same = len(set(parts)) == 1
    taken = f"{parts[0]} each" if same else " + ".join(map(str, parts))
    how = f"DDP on {backend}"
    if synchronised:
        how += ", batch normalisation with the statistics of the whole batch"
    total = counted(sum(parts), "example")
    return f"{len(parts)}, which took {taken} of the {total} of each batch ({how})"


def describe_schedule(recipe: Recipe) -> str:
    """Describe the learning rate schedule, clipping and layer decay.

    >>> describe_schedule(Recipe(schedule="cosine", warmup_epochs=2, clip=1.0))
    'cosine, warmed up over 2 epochs, gradients clipped at 1'
    """
    parts = [recipe.schedule]
    if recipe.warmup_epochs:
        epochs = "epoch" if recipe.warmup_epochs == 1 else "epochs"
        parts.append(f"warmed up over {recipe.warmup_epochs:g} {epochs}")
    if recipe.extra_epochs:
        extra = counted(recipe.extra_epochs, "epoch")
        parts.append(f"then {extra} at {TAIL:g} times the rate")
    if recipe.clip is not None:
        parts.append(f"gradients clipped at {recipe.clip:g}")
    if recipe.layer_decay is not None:
        parts.append(f"times {recipe.layer_decay:g} per layer")
    return ", ".join(parts)


def _is_set(key: str, value: Any) -> bool:
    if isinstance(value, bool) or value is None or isinstance(value, Tensor):
        return False
    # Some keep buffers among their settings: lists of tensors or of None.
    parts = value if isinstance(value, (tuple, list)) else [value]
    if not all(isinstance(part, (int, float)) for part in parts):
        return False
    return key == "lr" or bool(value)


def _spread(values: Sequence[Any], groups: int) -> str:
    """Format one value, or the range over several parameter groups."""
    known = sorted({_spell(value) for value in values})
    if len(known) == 1:
        return known[0] if len(values) == groups else f"{known[0]} (some parameters)"
    numbers = [value for value in values if isinstance(value, (int, float))]
    if len(numbers) < len(values):
        return " or ".join(known)
    return f"{_spell(min(numbers))} to {_spell(max(numbers))}"


def _spell(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(_spell, value))})"
    return f"{value:g}" if isinstance(value, (int, float)) else str(value)


def batch_size(batch: Any, dimension: int = 0) -> int | None:
    """Return the number of examples in the first tensor of a batch."""
    if isinstance(batch, Tensor):
        return batch.shape[dimension] if batch.dim() > dimension else None
    parts = batch.values() if isinstance(batch, Mapping) else batch
    if not isinstance(parts, (Sequence, type({}.values()))) or isinstance(parts, str):
        return None
    parts = list(parts)
    if parts and all(isinstance(p, Tensor) and p.dim() == 3 for p in parts):
        return len(parts)  # a list of images of different sizes, as in detection
    sizes = (batch_size(part, dimension) for part in parts)
    return next((size for size in sizes if size is not None), None)
