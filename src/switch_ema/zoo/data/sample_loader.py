"""Reads and augments examples one by one, in worker processes that live on.

Each example is drawn with a seed of its own: a batch is the same for every number of
workers, wherever an epoch starts, and for every division among data-parallel processes.
"""

import gc
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from multiprocessing import current_process
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from switch_ema._checks import check_count
from switch_ema._random import random_numbers_kept
from switch_ema.bench.broken_files import BrokenFile, BrokenFiles
from switch_ema.bench.loaders import WHOLE, BatchPart, usable_cores

_CHUNK = 64
"""Examples that a worker sends at once. All workers build a batch together, so it is
ready sooner, and memory does not grow with the number of workers."""
_BATCHES_AHEAD = 2
"""Batches that workers prepare in advance."""
_MOST_WORKERS = 16


class Samples(Protocol):
    """Examples by index, read and augmented on access.

    They draw from the global generators of Python, NumPy and torch, which are seeded
    before each access, and raise :class:`BrokenFile` for a file that cannot be read.
    """

    def __len__(self) -> int:
        """Count the examples."""

    def __getitem__(self, index: int) -> Any:
        """Return one example."""


@dataclass(frozen=True)
class EpochOrder:
    """The examples of an epoch, in order, each with its seed."""

    indices: Tensor
    seeds: Tensor
    """Below 2**32; an example that occurs twice has two of them."""
    size: int
    """Examples per batch."""

    def __len__(self) -> int:
        return -(-len(self.indices) // self.size)

    def examples(self, batch: int) -> int:
        """Return the number of examples in a batch, by its index."""
        return min(self.size, len(self.indices) - batch * self.size)


class SampleLoader:
    """Batches of examples, for any number of epochs.

    Args:
        samples: The examples.
        workers: Processes that read them; 0 reads them here. They start with the first
            epoch and end when the loader is deleted.
        broken: Records files that cannot be read.
        replaces: Whether the next readable example takes the place of a broken one, as
            in training; otherwise it is left out.
        collate: Joins a list of examples.
    """

    def __init__(
        self,
        samples: Samples,
        *,
        workers: int,
        broken: BrokenFiles | None = None,
        replaces: bool = True,
        collate: Callable[[list[Any]], Any] = default_collate,
    ) -> None:
        self._samples, self._workers, self._replaces = samples, workers, replaces
        self._broken = BrokenFiles() if broken is None else broken
        self._collate = _Collate(collate)
        self._kept: tuple[DataLoader[Any], _Requests] | None = None
        self._is_busy = False

    def chunks(
        self,
        order: EpochOrder,
        *,
        start: int = 0,
        part: BatchPart = WHOLE,
        paired: bool = False,
        pinned: bool = False,
    ) -> Iterator[list[Any]]:
        """Yield each batch as a list of collated chunks.

        Args:
            order: The examples of the epoch.
            start: Batches to leave out, unread.
            part: The part of each batch to read.
            paired: Whether parts keep mirrored positions together.
            pinned: Whether to copy to pinned memory, from which GPUs copy faster.
        """
        if self._is_busy:  # an iterator of the same loader is not finished
            loader, requests = self._make(order.size, pinned)
        else:
            self._kept = self._kept or self._make(order.size, pinned)
            loader, requests = self._kept
        requests.order, requests.start = order, start
        requests.part, requests.paired = part, paired
        own, self._is_busy = not self._is_busy, True
        try:
            with self._undisturbed():
                chunks = iter(loader)
            for batch in range(start, len(order)):
                count = len(part.of(order.examples(batch), paired=paired))
                yield [self._next(chunks) for _ in range(0, count, _CHUNK)]
        finally:
            if own:
                self._is_busy = False

    def _next(self, chunks: Iterator[Any]) -> Any:
        with self._undisturbed():
            chunk, broken = next(chunks)
        for path, reason in broken:
            self._broken.add(path, reason)
        return chunk

    def _undisturbed(self) -> Any:
        """Keep this process's random numbers, which examples read here would seed."""
        return nullcontext() if self._workers else random_numbers_kept()

    def _make(self, size: int, pinned: bool) -> tuple[DataLoader[Any], "_Requests"]:
        requests, most = _Requests(), self._broken.most if self._replaces else 0
        options: dict[str, Any] = {}
        if self._workers:
            # A worker that inherits the garbage of another loader would collect it,
            # and close pipes of that loader's workers, or its own.
            gc.collect()
            ahead = _BATCHES_AHEAD * -(-size // _CHUNK)
            options = {
                "persistent_workers": True,
                "worker_init_fn": _keep_inherited,
                "prefetch_factor": max(2, -(-ahead // self._workers)),
            }
        loader: DataLoader[Any] = DataLoader(
            _Seeded(self._samples, most),
            batch_sampler=requests,
            collate_fn=self._collate,
            num_workers=self._workers,
            pin_memory=pinned,
            generator=torch.Generator(),  # not the global one, which trains
            **options,
        )
        return loader, requests


def _keep_inherited(worker: int) -> None:
    """Never collect objects of the parent process in a worker."""
    gc.freeze()


class _Requests:
    """The batch sampler: index and seed of the examples of each chunk."""

    order: EpochOrder
    start: int
    part: BatchPart
    paired: bool

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        order = self.order
        for batch in range(self.start, len(order)):
            own = self.part.of(order.examples(batch), paired=self.paired)
            for chosen in torch.split(own + batch * order.size, _CHUNK):
                indices, seeds = order.indices[chosen], order.seeds[chosen]
                yield list(zip(indices.tolist(), seeds.tolist(), strict=True))


class _Seeded(Dataset[Any]):
    """Examples with the broken files met on the way to them."""

    def __init__(self, samples: Samples, most: int) -> None:
        self._samples, self._most = samples, most

    def __getitem__(self, request: tuple[int, int]) -> tuple[Any, list[Any]]:
        index, seed = request
        broken: list[tuple[str, str]] = []
        for tried in range(self._most + 1):
            random.seed(seed)
            np.random.seed(seed)
            torch.default_generator.manual_seed(seed)
            try:
                return self._samples[(index + tried) % len(self._samples)], broken
            except BrokenFile as error:  # told apart in the main process
                broken.append((error.path, error.reason))
        return None, broken


@dataclass(frozen=True)
class _Collate:
    """Joins the readable examples of a chunk, and its broken files."""

    collate: Callable[[list[Any]], Any]

    def __call__(self, found: Sequence[tuple[Any, list[Any]]]) -> tuple[Any, list[Any]]:
        readable = [example for example, _ in found if example is not None]
        broken = [file for _, files in found for file in files]
        return self.collate(readable) if readable else None, broken


def wanted_workers(given: int | None, *, large: bool) -> int:
    """Return the number of worker processes of a task where there are enough cores."""
    usual = _MOST_WORKERS if large else 0
    return usual if given is None else given


def count_workers(given: int | None, *, large: bool = True) -> int:
    """Return the number of worker processes of a task.

    Args:
        given: The user's choice.
        large: Whether the task needs workers; one that does not has none by default.

    By default one per core that this training may use, up to 16.
    """
    if given is not None:
        return check_count("workers", given, 0)
    if not large:
        return 0
    if current_process().daemon:
        warnings.warn(
            "images are read one after another: this is a daemonic process, which "
            "cannot start workers.",
            stacklevel=2,
        )
        return 0
    return min(usable_cores(), _MOST_WORKERS)
