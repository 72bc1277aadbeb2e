"""Digests of a training's start and end, to check that methods are paired by seed.

With the same seed, every method must start from the same weights and see the same first
batch; different seeds must not end in the same weights.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Protocol

import numpy
import torch
from torch import Tensor, nn

from switch_ema.averaging.model.names import unwrap

_NUMBERS = 4096
"""Numbers hashed of each weight tensor: a different draw changes the first ones."""


class _Hash(Protocol):
    def update(self, data: bytes, /) -> None: ...


@dataclass
class Starts:
    """Digests of one training, one per seed; empty if unknown."""

    weights: list[str] = field(default_factory=list)
    """Initial weights."""
    batch: list[str] = field(default_factory=list)
    """First batch."""
    end: list[str] = field(default_factory=list)
    """Live weights after the last step."""


@torch.no_grad()
def weight_digests(model: nn.Module, seeds: int, *, stacked: bool) -> list[str]:
    """Hash the weights of each seed; empty if they cannot be read.

    Args:
        model: the model in training.
        seeds: number of seeds.
        stacked: whether the seed is the first dimension of every tensor.
    """
    found = []
    for index in range(seeds):
        digest = blake2b(digest_size=8)
        try:
            # Not state_dict(), which gathers the shards of other ranks.
            for name, tensor in _named_tensors(unwrap(model)):
                digest.update(name.encode())
                _add(digest, tensor[index] if stacked else tensor, _NUMBERS)
        # Lazy, meta and custom tensors; pairing is then not checked.
        except (RuntimeError, TypeError, ValueError, NotImplementedError):
            return []
        found.append(digest.hexdigest())
    return found


def _named_tensors(model: nn.Module) -> Iterable[tuple[str, Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()


def batch_digests(batch: Any, seeds: int, *, stacked: bool) -> list[str]:
    """Hash a batch for each seed; arguments as in :func:`weight_digests`."""
    found = []
    for index in range(seeds):
        digest = blake2b(digest_size=8)
        try:
            for leaf in _leaves(batch):
                own = stacked and isinstance(leaf, Tensor) and leaf.ndim > 0
                _add(digest, leaf[index] if own else leaf)
        except (RuntimeError, TypeError, ValueError, NotImplementedError):
            return []
        found.append(digest.hexdigest())
    return found


def local_part(tensor: Tensor) -> Tensor:
    """Return this process's shard of a DTensor; other tensors whole."""
    local: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local


def _leaves(batch: Any) -> Iterable[Any]:
    if isinstance(batch, Mapping):
        for key in batch:
            yield str(key)
            yield from _leaves(batch[key])
    elif isinstance(batch, (tuple, list)):
        for part in batch:
            yield from _leaves(part)
    else:
        yield batch


def _add(digest: _Hash, value: Any, most: int | None = None) -> None:
    """Add a value to a digest; objects of unknown types count by their type."""
    if isinstance(value, Tensor):
        numbers = local_part(value).detach().reshape(-1)[:most].cpu()
        digest.update(f"{value.dtype} {tuple(value.shape)}".encode())
        digest.update(numbers.contiguous().view(torch.uint8).numpy().tobytes())
    elif isinstance(value, numpy.ndarray) and value.dtype != object:
        digest.update(f"{value.dtype} {value.shape}".encode())
        digest.update(value.tobytes())
    elif isinstance(value, (bool, int, float, str, bytes, type(None))):
        digest.update(repr(value).encode())
    else:
        digest.update(type(value).__qualname__.encode())
