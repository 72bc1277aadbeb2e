"""One step of any optimizer, in one pass or, for SAM, in two."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from switch_ema.bench.optimizers.sam import SAM


def has_modes(optimizer: Optimizer) -> bool:
    """Whether it trains and evaluates with different weights (schedule-free)."""
    return hasattr(_unwrap(optimizer), "train")


def set_mode(optimizer: Optimizer, *, training: bool) -> None:
    """Switch the model to the weights for training or evaluation.

    Does nothing unless ``has_modes``. Call it outside ``averaged()``, because it writes
    the weights. A round trip may change the last bit.
    """
    if has_modes(optimizer):
        inner: Any = _unwrap(optimizer)
        inner.train() if training else inner.eval()


def take_step(
    optimizer: Optimizer, model: nn.Module, compute_gradients: Callable[[], Tensor]
) -> Tensor:
    """Clear the gradients, compute them and step; for SAM, in two passes.

    SAM's second pass does not update running statistics of normalisation layers, which
    belong to the unperturbed weights, and restores the weights even if it fails.

    Args:
        optimizer: Bare, or as prepared by Accelerate.
        model: Its parameters are those of the optimizer.
        compute_gradients: Runs forward and backward on one (accumulated) batch,
            without clearing gradients, and returns the loss.

    Returns:
        The loss at the weights before the step, detached.
    """
    optimizer.zero_grad()
    loss = compute_gradients().detach()
    sam = _unwrap(optimizer)
    if not isinstance(sam, SAM):
        optimizer.step()
        return loss
    sam.first_step()
    try:
        optimizer.zero_grad()
        with frozen_statistics(model):
            compute_gradients()
    finally:
        sam.restore()
    optimizer.step()
    return loss


def _unwrap(optimizer: Optimizer) -> Optimizer:
    """Unwrap an optimizer prepared by Accelerate."""
    inner: Optimizer = getattr(optimizer, "optimizer", optimizer)
    return inner


@contextmanager
def frozen_statistics(model: nn.Module) -> Iterator[None]:
    """Normalise by batch statistics without recording them.

    Unlike a momentum of 0, this also keeps the batch counter.
    """
    recording: list[Any] = [
        module
        for module in model.modules()
        if module.training and getattr(module, "track_running_stats", False)
    ]
    for module in recording:
        module.track_running_stats = False
    try:
        yield
    finally:
        for module in recording:
            module.track_running_stats = True
