"""Memory that the state of a training takes.

That is the weights, their gradients, the optimizer's state and the averages: what a
method adds to, and the same on every machine. The activations of a batch and torch's
own code are not counted; the process's memory is mostly these.
"""

import resource
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from switch_ema.averaging.distributed.fsdp import local_part

_OURS = "switch_ema."


def state_mb(
    model: nn.Module, optimizers: Iterable[Any], averagers: Iterable[Any]
) -> float:
    """Return the size of a training's state in MB (10^6 bytes), on this process.

    Args:
        model: the model; every trainable parameter counts twice, for its gradient.
        optimizers: its optimizers, after at least one step.
        averagers: averagers that follow this training.
    """
    states = [getattr(optimizer, "state", {}) for optimizer in optimizers]
    own = [*model.parameters(), *model.buffers()]
    held = storages([*map(local_part, own), *tensors_in([*states, *averagers])])
    trained = (p for p in model.parameters() if p.requires_grad)
    gradients = sum(local_part(parameter).nbytes for parameter in trained)
    return (sum(size for _, size in held) + gradients) / 1e6


def storages(tensors: Iterable[Tensor]) -> set[tuple[int, int]]:
    """Return address and size of each storage; shared ones are there once."""
    # Sparse and nested tensors have no storage.
    dense = [t for t in tensors if t.layout == torch.strided and not t.is_nested]
    found = [tensor.untyped_storage() for tensor in dense]
    return {(one.data_ptr(), one.nbytes()) for one in found if one.nbytes()}


def tensors_in(value: Any) -> list[Tensor]:
    """Find the tensors in containers and in objects of this package.

    Models and optimizers that an object refers to are left out.
    """
    return list(_walk(value, set()))


def _walk(value: Any, seen: set[int]) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield local_part(value)
        return
    if isinstance(value, Mapping):
        parts: Iterable[Any] = value.values()
    elif isinstance(value, (list, tuple, set, deque)):
        parts = value
    elif type(value).__module__.startswith(_OURS) and not isinstance(
        value, (nn.Module, torch.optim.Optimizer)
    ):
        parts = vars(value).values() if hasattr(value, "__dict__") else ()
    else:
        return
    if id(value) not in seen:
        seen.add(id(value))
        for part in list(parts):
            yield from _walk(part, seen)


def peak_mb(device: torch.device) -> float:
    """Return the peak memory of a GPU, or of this process, in MB (10^6 bytes)."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e6
    status = Path("/proc/self/status")
    if status.is_file():
        # On Linux a process that was started by a larger one inherits its ru_maxrss.
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024 / 1e6
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6
