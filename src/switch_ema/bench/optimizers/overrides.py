"""Changes the settings of an existing optimizer."""

from collections.abc import Iterable
from typing import Any

from torch.optim import Optimizer

from switch_ema.bench.errors import UsageError
from switch_ema.bench.spec import KINDS, Change


def change_optimizer(optimizer: Optimizer, changes: Iterable[Change]) -> None:
    """Change settings of every parameter group, before the first step.

    Groups whose value differs from the optimizer's own, such as layers with a smaller
    learning rate, keep their ratio to it; a weight decay of 0 stays 0.

    >>> import torch
    >>> sgd = torch.optim.SGD([torch.zeros(1)], lr=0.1)
    >>> change_optimizer(sgd, [Change("lr", 0.5, is_factor=True)])
    >>> sgd.param_groups[0]["lr"]
    0.05
    """
    for change in changes:
        own = optimizer.defaults.get(change.option)
        if own is None or change.option not in optimizer.param_groups[0]:
            known = [key for key, value in optimizer.defaults.items() if value != own]
            raise UsageError(
                f"the optimizer {type(optimizer).__name__} has no setting "
                f"{change.option!r}; it has {', '.join(known)}."
            )
        value = own * change.value if change.is_factor else change.value
        check_change(change, own, value)
        for group in optimizer.param_groups:
            group[change.option] = _changed(group[change.option], own, value)
        optimizer.defaults[change.option] = value


def _changed(found: Any, own: Any, value: Any) -> Any:
    """Return a group's new value, keeping its ratio to the default."""
    if found == own or not isinstance(found, float) or not own:
        return value
    return found * value / own


def check_change(change: Change, own: Any, value: Any) -> None:
    """Refuse a value of the wrong type, or a rate of 0."""
    numbers = (int, float)
    if type(own) in numbers and type(value) in numbers:
        if value < 0 or (change.option == "lr" and value == 0):
            raise UsageError(f"{change.option} must be positive, got {value}.")
    elif type(value) is not type(own):
        kind = KINDS.get(type(own), f"a {type(own).__name__}")
        raise UsageError(f"{change.option} must be {kind}, got {value!r}.")
