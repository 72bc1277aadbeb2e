"""Recomputes the running statistics of normalisation layers.

Averaged weights produce different activations from the weights they were made of, so
statistics gathered in training may not fit them.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from switch_ema.averaging._torch import NormLayer, buffers_of
from switch_ema.averaging.distributed.ddp import (
    find_replica,
    keeping_buffers_apart,
    mean_over_ranks,
)

Call = Callable[[nn.Module, Any], Any]


def recalibrate(
    model: nn.Module,
    loader: Iterable[Any],
    call: Call | None,
    tracked: Collection[int],
) -> None:
    """Run all batches in training mode and keep the plain mean of their statistics.

    Under DDP, it is the mean over the batches of all ranks.

    Args:
        model: holds the averaged weights.
        loader: batches.
        call: runs the model on one batch.
        tracked: ids of the tensors that are averaged.
    """
    layers = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, NormLayer) and module.running_mean is not None
    }
    for name, layer in layers.items():
        if id(layer.running_mean) not in tracked:
            raise ValueError(
                f"recalibrate needs averaged statistics, but include or exclude leaves "
                f"out those of {name or 'the model'}."
            )
    for name, module in model.named_modules():
        is_scripted = isinstance(module, torch.jit.ScriptModule)
        if is_scripted and "running_mean" in buffers_of(module):
            raise TypeError(
                f"recalibrate cannot set the momentum of {name or 'the model'}, a "
                "TorchScript module; recalibrate before scripting the model."
            )
    if not layers:
        return
    replica = find_replica(model)
    with _training_mode(model), _fresh_statistics(layers.values()):
        seen = 0
        with keeping_buffers_apart(replica):
            for batch in loader:
                (call or _call_model)(model, batch)
                seen += 1
        if replica is not None:
            seen = _pool(replica, seen)
        if not seen:
            raise ValueError(
                "recalibrate needs at least one batch, but the loader is empty."
            )


def _pool(replica: DistributedDataParallel, seen: int) -> int:
    """Combine the statistics of all ranks; return the number of their batches."""
    means: list[Tensor] = []
    counts = []
    for layer in replica.module.modules():
        if isinstance(layer, NormLayer) and layer.running_mean is not None:
            assert layer.running_var is not None
            means += [layer.running_mean, layer.running_var]
            counts.append(layer.num_batches_tracked)
    if not means:
        return seen
    total = mean_over_ranks(replica, means, seen)
    for count in counts:
        if count is not None:
            count.fill_(total)
    return total


def _call_model(model: nn.Module, batch: Any) -> Any:
    """Call a model on a tensor, sequence or mapping, moved to the model's device."""
    device = next(model.parameters()).device
    if isinstance(batch, Mapping):
        return model(**{key: _to(value, device) for key, value in batch.items()})
    first = batch[0] if isinstance(batch, (list, tuple)) else batch
    return model(_to(first, device))


def _to(value: Any, device: torch.device) -> Any:
    return value.to(device) if isinstance(value, Tensor) else value


@contextmanager
def _training_mode(model: nn.Module) -> Iterator[None]:
    modes = {module: module.training for module in model.modules()}
    model.train()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode


@contextmanager
def _fresh_statistics(layers: Iterable[NormLayer]) -> Iterator[None]:
    """Gather statistics from scratch; restore the old ones on failure."""
    kept = [
        (layer, layer.momentum, [buffer.clone() for buffer in layer.buffers(False)])
        for layer in layers
    ]
    for layer, _, _ in kept:
        layer.reset_running_stats()
        layer.momentum = None
    try:
        yield
    except BaseException:
        for layer, _, buffers in kept:
            for buffer, old in zip(layer.buffers(False), buffers, strict=True):
                buffer.copy_(old)
        raise
    finally:
        for layer, momentum, _ in kept:
            layer.momentum = momentum
