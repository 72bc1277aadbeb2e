"""Batches of images of different sizes, with their targets."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from accelerate.utils import send_to_device
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from switch_ema.bench.loaders import CPU, WHOLE, BatchPart
from switch_ema.zoo.data.detection import Examples, Target
from switch_ema.zoo.data.splits import stream

Batch = tuple[list[Tensor], list[Target]]


class DetectionBatches:
    """One epoch of training examples.

    Args:
        examples: Training examples.
        transform: Applied to each; None if the examples are already augmented.
        masks: Whether to decode masks, which takes time.
        batch: Images per batch; an incomplete last batch is dropped.
        repeats: Passes over the examples.
        seed: Seeds the order, together with the epoch.
        epoch: Index of the epoch.
        workers: Processes that read and augment.
    """

    def __init__(
        self,
        examples: Examples,
        transform: Callable[[Tensor, Target], tuple[Tensor, Target]] | None,
        *,
        masks: bool,
        batch: int,
        repeats: int,
        seed: int,
        epoch: int,
        workers: int = 0,
    ) -> None:
        generator = stream(seed, f"order of epoch {epoch}")
        count = len(examples)
        passes = [torch.randperm(count, generator=generator) for _ in range(repeats)]
        order = torch.cat(passes).tolist()
        seeds = torch.randint(2**31, (len(order),), generator=generator).tolist()
        self._examples = _Augmented(examples, order, seeds, transform, masks)
        self._size, self._workers = min(batch, count), workers

    def __len__(self) -> int:
        return len(self._examples) // self._size

    def __iter__(self) -> Iterator[Batch]:
        return self.batches()

    def batches(
        self, *, start: int = 0, part: BatchPart = WHOLE, device: torch.device = CPU
    ) -> Iterator[Batch]:
        """Yield the batches; see :class:`PlacedLoader`."""
        own = part.of(self._size)
        loader: DataLoader[Any] = DataLoader(
            self._examples,
            batch_sampler=[
                (index * self._size + own).tolist() for index in range(start, len(self))
            ],
            collate_fn=_collate,
            num_workers=self._workers,
        )
        for batch in loader:
            yield send_to_device(batch, device, non_blocking=True)

    def examples(self, batch: int) -> int:
        """Return the number of images in a batch."""
        return self._size


class _Augmented(Dataset[tuple[Tensor, Target]]):
    """Training examples: without crowds, pixels in [0, 1].

    Each example has its own seed, so its augmentation depends neither on the number of
    workers nor on other random draws.
    """

    def __init__(
        self,
        examples: Examples,
        order: list[int],
        seeds: list[int],
        transform: Callable[[Tensor, Target], tuple[Tensor, Target]] | None,
        masks: bool,
    ) -> None:
        self._examples, self._order, self._seeds = examples, order, seeds
        self._transform, self._masks = transform, masks

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, position: int) -> tuple[Tensor, Target]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._seeds[position])
            return self._augmented(self._order[position])

    def _augmented(self, index: int) -> tuple[Tensor, Target]:
        image, target = self._examples[index]
        single = target["iscrowd"] == 0
        target = {
            key: value if bool(single.all()) else value[single]
            for key, value in target.items()
            if self._masks or key != "masks"
        }
        if self._transform is not None:
            image, target = self._transform(image, target)
        return image / 255, target


def _collate(examples: list[tuple[Tensor, Target]]) -> Batch:
    return [image for image, _ in examples], [target for _, target in examples]
