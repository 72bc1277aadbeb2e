"""Batches of images of different sizes, with their targets."""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

import torch
from accelerate.utils import send_to_device
from torch import Tensor

from switch_ema.bench.broken_files import BrokenFiles
from switch_ema.bench.loaders import CPU, WHOLE, BatchPart
from switch_ema.bench.sharding import Shard
from switch_ema.zoo.data.detection import Examples, Target
from switch_ema.zoo.data.sample_loader import EpochOrder, SampleLoader
from switch_ema.zoo.data.splits import stream

Batch = tuple[list[Tensor], list[Target]]
_Transform = Callable[[Tensor, Target], tuple[Tensor, Target]]


class DetectionLoader:
    """Training examples, augmented, for any number of epochs.

    Args:
        examples: Training examples.
        transform: Applied to each; None if the examples are already augmented.
        masks: Whether targets have masks.
        batch: Images per batch; an incomplete last batch is dropped.
        repeats: Passes over the examples.
        seed: Seeds the order, together with the epoch.
        workers: Processes that read and augment.
        broken: Records files that cannot be read.
    """

    def __init__(
        self,
        examples: Examples,
        transform: _Transform | None,
        *,
        masks: bool,
        batch: int,
        repeats: int,
        seed: int,
        workers: int = 0,
        broken: BrokenFiles | None = None,
    ) -> None:
        self.count, self.repeats, self.seed = len(examples), repeats, seed
        self.batch = min(batch, self.count)
        samples = _Augmented(examples, transform, masks)
        self.reader = SampleLoader(
            samples, workers=workers, broken=broken, collate=_collate
        )

    def epoch(self, epoch: int) -> "DetectionBatches":
        """Return the batches of an epoch."""
        return DetectionBatches(self, epoch)


class DetectionBatches:
    """One epoch of training examples, with pixels in [0, 1]."""

    def __init__(self, loader: DetectionLoader, epoch: int) -> None:
        generator = stream(loader.seed, f"order of epoch {epoch}")
        passes = range(loader.repeats)
        order = [torch.randperm(loader.count, generator=generator) for _ in passes]
        indices = torch.cat(order)
        seeds = torch.randint(2**31, indices.shape, generator=generator)
        full = len(indices) // loader.batch * loader.batch
        self._reader = loader.reader
        self._order = EpochOrder(indices[:full], seeds[:full], loader.batch)

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[Batch]:
        return self.batches()

    def batches(
        self, *, start: int = 0, part: BatchPart = WHOLE, device: torch.device = CPU
    ) -> Iterator[Batch]:
        """Yield the batches; see :class:`PlacedLoader`."""
        pinned = device.type == "cuda"
        for chunks in self._reader.chunks(
            self._order, start=start, part=part, pinned=pinned
        ):
            images, targets = _join(chunks)
            images, targets = send_to_device((images, targets), device, True)
            yield [image / 255 for image in images], targets

    def examples(self, batch: int) -> int:
        """Return the number of images in a batch."""
        return self._order.examples(batch)


class EvaluationExamples:
    """Examples in order, as they are, in batches.

    Args:
        examples: The examples.
        batch: Images per batch.
        workers: Processes that read them.
        broken: Records files that cannot be read, which are left out.
        shard: Workers divide the batches, not the images: these are padded to the same
            size within a batch, so detections depend on it a little.
    """

    def __init__(
        self,
        examples: Examples,
        batch: int,
        *,
        workers: int = 0,
        broken: BrokenFiles | None = None,
        shard: Shard | None = None,
    ) -> None:
        numbers = torch.arange(len(examples))
        if shard is not None:
            own = shard.share(-(-len(numbers) // batch))
            numbers = numbers[own.start * batch : own.stop * batch]
        self._order = EpochOrder(numbers, torch.zeros_like(numbers), batch)
        self._reader = SampleLoader(
            examples,
            workers=workers,
            broken=broken,
            replaces=False,
            collate=_collate,
        )

    def batches(self) -> Iterator[Batch]:
        """Yield images as bytes, and their targets."""
        for chunks in self._reader.chunks(self._order):
            readable = [chunk for chunk in chunks if chunk is not None]
            if readable:
                yield _join(readable)


class _Augmented:
    """Training examples without crowds."""

    def __init__(
        self, examples: Examples, transform: _Transform | None, masks: bool
    ) -> None:
        self._examples, self._transform, self._masks = examples, transform, masks

    def __len__(self) -> int:
        return len(self._examples)

    def __getitem__(self, index: int) -> tuple[Tensor, Target]:
        image, target = self._examples[index]
        single = target["iscrowd"] == 0
        target = {
            key: value if bool(single.all()) else value[single]
            for key, value in target.items()
            if self._masks or key != "masks"
        }
        if self._transform is not None:
            image, target = self._transform(image, target)
        return image, target


def _collate(examples: list[tuple[Tensor, Target]]) -> Batch:
    return [image for image, _ in examples], [target for _, target in examples]


def _join(chunks: Sequence[Any]) -> Batch:
    """Join parts of a batch."""
    images = chain.from_iterable(images for images, _ in chunks)
    targets = chain.from_iterable(targets for _, targets in chunks)
    return list(images), list(targets)
