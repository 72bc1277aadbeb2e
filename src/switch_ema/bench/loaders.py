"""Loaders: the batches of one epoch, whole or only what one process needs of them."""

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any, Protocol, TypeGuard

import torch
from accelerate.utils import send_to_device
from torch import Tensor

CPU = torch.device("cpu")
CORES = "SWITCH_EMA_CORES"
"""Environment variable with the cores of this process, set by what places trainings."""


def usable_cores() -> int:
    """Return the cores that this process may use for itself and those it starts."""
    if CORES in os.environ:
        return int(os.environ[CORES])
    if hasattr(os, "sched_getaffinity"):  # Linux: what a container or Slurm allows
        here = len(os.sched_getaffinity(0))
    else:
        here = os.cpu_count() or 1
    # Data-parallel processes on this machine, as torchrun counts them.
    return max(1, here // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


class Loader(Protocol):
    """Batches of one epoch, with a known length."""

    def __len__(self) -> int:
        """Return the number of batches."""

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches."""


@dataclass(frozen=True)
class BatchPart:
    """The examples of each batch that one of several data-parallel processes takes."""

    rank: int = 0
    ranks: int = 1

    def of(self, count: int, *, paired: bool = False) -> Tensor:
        """Return positions in a batch of ``count`` examples, in ascending order.

        Args:
            count: Examples in the whole batch.
            paired: Keep position ``i`` and its mirror image ``count - 1 - i`` together:
                Mixup and CutMix blend these two, in a part as in the whole batch.

        >>> [BatchPart(rank, 3).of(8).tolist() for rank in range(3)]
        [[0, 1, 2], [3, 4, 5], [6, 7]]
        >>> [BatchPart(rank, 2).of(8, paired=True).tolist() for rank in range(2)]
        [[0, 1, 6, 7], [2, 3, 4, 5]]
        """
        divided = (count + 1) // 2 if paired else count
        least, more = divmod(divided, self.ranks)
        ends = [rank * least + min(rank, more) for rank in range(self.ranks + 1)]
        start, stop = list(pairwise(ends))[self.rank]
        own = torch.arange(start, stop)
        if not paired:
            return own
        mirrored = (count - 1 - own).flip(0)
        return torch.cat([own, mirrored[mirrored >= divided]])

    def take(self, batch: Any) -> Any:
        """Return this part of a tensor, or of the tensors of a tuple, list or dict."""
        if self.ranks == 1:
            return batch
        if isinstance(batch, Mapping):
            return {key: self.take(value) for key, value in batch.items()}
        if isinstance(batch, Tensor):
            return batch[self.of(len(batch))]
        return type(batch)(self.take(value) for value in batch)


WHOLE = BatchPart()


class PlacedLoader(Loader, Protocol):
    """A loader that reads only what a process needs, and prepares it on its device."""

    def batches(
        self, *, start: int = 0, part: BatchPart = WHOLE, device: torch.device = CPU
    ) -> Iterator[Any]:
        """Yield the batches as ``__iter__`` does, or less of them.

        Args:
            start: Batches at the beginning of the epoch to leave out, unread.
            part: The examples of each batch to read.
            device: Device of the batches. Values do not depend on it.
        """

    def examples(self, batch: int) -> int:
        """Return the number of examples in a whole batch, by its index."""


def feed(
    loader: Loader | Iterable[Any],
    device: torch.device,
    *,
    start: int = 0,
    part: BatchPart = WHOLE,
) -> Iterator[Any]:
    """Yield a loader's batches on a device.

    A :class:`PlacedLoader` reads only what is asked for; on GPUs it prepares a batch
    while the one before is trained on. Any other loader is read as a whole.

    Args:
        loader: The batches of an epoch, or any others.
        device: Device of the model.
        start: Batches to leave out, for a training that resumes within an epoch.
        part: The part of each batch to keep.
    """
    if is_placed(loader):
        batches = loader.batches(start=start, part=part, device=device)
        return _one_ahead(batches, device) if device.type == "cuda" else batches
    return (
        send_to_device(part.take(batch), device, non_blocking=True)
        for batch in islice(loader, start, None)
    )


def is_placed(loader: Iterable[Any]) -> TypeGuard[PlacedLoader]:
    """Whether a loader is a :class:`PlacedLoader`.

    A subclass that defines ``__iter__`` alone is none, even if its base is one: the
    inherited method would yield the batches of the base.
    """
    defined_by = {
        name: next((base for base in type(loader).__mro__ if name in vars(base)), None)
        for name in ("batches", "__iter__")
    }
    placed, plain = defined_by["batches"], defined_by["__iter__"]
    return placed is not None and plain is not None and issubclass(placed, plain)


def _one_ahead(batches: Iterator[Any], device: torch.device) -> Iterator[Any]:
    """Copy and prepare each batch on a stream of its own, before it is asked for."""
    stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    done = object()

    def prepared() -> Any:
        with torch.cuda.stream(stream):
            return next(batches, done)

    following = prepared()
    while following is not done:
        torch.cuda.current_stream(device).wait_stream(stream)
        for tensor in _tensors_of(following):
            # Otherwise the side stream may reuse its memory while it is in use here.
            tensor.record_stream(torch.cuda.current_stream(device))
        current, following = following, prepared()
        yield current


def _tensors_of(batch: Any) -> Iterator[Tensor]:
    """Yield the tensors of a batch, however nested."""
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from _tensors_of(value)
    elif isinstance(batch, (tuple, list)):
        for value in batch:
            yield from _tensors_of(value)


class Rows(Protocol):
    """Examples that a tensor of indices selects: a tensor, or a class that reads."""

    def __len__(self) -> int:
        """Count the examples."""

    def __getitem__(self, rows: Tensor, /) -> Tensor:
        """Return the examples of these indices."""


class Batches:
    """Shuffled mini-batches of tensors in memory; faster than a DataLoader.

    Args:
        tensors: inputs, labels and so on, with the same number of examples.
        size: examples per batch.
        seed: seed of the order, together with the epoch.
        epoch: epoch, counted from 0.
        drop_last: drop a last batch that is not full: batch normalisation fails on one
            example and is noisy on few. A size above the number of examples then gives
            one batch of all of them.
    """

    def __init__(
        self,
        tensors: "tuple[Rows, ...]",
        size: int,
        seed: int,
        *,
        epoch: int,
        drop_last: bool = False,
    ) -> None:
        count = len(tensors[0])
        self.tensors, self.size = tensors, min(size, count) if drop_last else size
        generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
        order = torch.randperm(count, generator=generator)
        self.order = order[: count // self.size * self.size] if drop_last else order

    def __len__(self) -> int:
        return -(-len(self.order) // self.size)

    def __iter__(self) -> Iterator[Any]:
        return self.batches()

    def batches(
        self, *, start: int = 0, part: BatchPart = WHOLE, device: torch.device = CPU
    ) -> Iterator[Any]:
        """Yield the batches from ``start`` on; see :class:`PlacedLoader`."""
        for indices in torch.split(self.order, self.size)[start:]:
            own = part.take(indices)
            yield tuple(
                tensor[own].to(device, non_blocking=True) for tensor in self.tensors
            )

    def examples(self, batch: int) -> int:
        """Return the number of examples in a whole batch, by its index."""
        return min(self.size, len(self.order) - batch * self.size)
