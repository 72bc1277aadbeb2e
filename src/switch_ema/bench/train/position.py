"""Where a training is within an epoch, so that it can resume there bit for bit."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Protocol, TypeGuard, runtime_checkable

import torch
from accelerate.utils import send_to_device
from torch import Tensor

from switch_ema._random import random_state, set_random_state
from switch_ema.bench.loaders import Loader, is_placed


@runtime_checkable
class CarryingLoader(Protocol):
    """A loader whose batches depend on more than their index, such as a text's state.

    The names and their meaning are those of torchdata's loaders.
    """

    def state_dict(self) -> dict[str, Any]:
        """Return tensors and plain values that the next batch depends on."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Begin the next pass with the batch after the state was returned."""


def carries_state(loader: object) -> TypeGuard[CarryingLoader]:
    """Whether a loader is a :class:`CarryingLoader`."""
    return isinstance(loader, CarryingLoader)


@dataclass
class EpochPosition:
    """What an unfinished epoch needs besides weights, optimizer and averages."""

    epoch: int = 0
    """Epoch that it belongs to."""
    batches: int = 0
    """Batches trained on so far; always whole optimizer steps."""
    loss: Tensor | None = None
    """Sum of the losses of the steps so far."""
    is_trained: bool = False
    """Whether only the evaluation is left."""
    calls: int = 0
    """Losses computed so far, which seed a data-parallel worker's own numbers."""
    random: dict[str, Any] | None = None
    """States of the random number generators after the last step."""
    carried: dict[str, Any] | None = None
    """State of a :class:`CarryingLoader`."""

    def state(self, loader: Loader | None, device: torch.device) -> dict[str, Any]:
        """Return everything as tensors and plain values.

        Args:
            loader: the batches of the epoch; None once it is trained.
            device: device of the training.
        """
        carried = loader.state_dict() if carries_state(loader) else None
        return {
            "batches": self.batches,
            "loss": None if self.loss is None else self.loss.cpu(),
            "is_trained": self.is_trained,
            "calls": self.calls,
            "random": None if loader is None else random_state(device),
            "carried": carried,
        }


def remaining_batches(
    loader: Loader,
    position: EpochPosition,
    device: torch.device,
    draw: Callable[..., Iterator[Any]],
) -> Iterator[Any]:
    """Yield the batches of an epoch from a position on.

    The caller must have seeded the epoch. A loader that cannot begin at a batch yields
    the earlier ones again, which are dropped. Then the random states of the position
    are restored: an augmentation may draw from them between two steps.

    Args:
        loader: the batches of the epoch.
        position: where to begin.
        device: device of the training.
        draw: yields the batches of the loader; if that is a ``PlacedLoader``, from
            the index ``start`` on.
    """
    if not position.batches:
        return draw()
    placed, carries = is_placed(loader), carries_state(loader)
    if carries_state(loader) and position.carried is not None:
        loader.load_state_dict(send_to_device(position.carried, device))
    if placed or carries:
        batches = draw(start=position.batches) if placed else draw()
        # The first batch starts worker processes, which are seeded with the epoch.
        batches = chain(list(islice(batches, 1)), batches)
    else:
        batches = draw()
        for _ in islice(batches, position.batches):
            pass
    if position.random is not None:
        set_random_state(position.random, device)
    return batches
