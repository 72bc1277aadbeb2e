"""Batches of views: drawn on tensors at small scale, by lightly at the paper's."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from switch_ema.bench.data.splits import stream
from switch_ema.bench.data.vision import Images, picture
from switch_ema.bench.task import Batches
from switch_ema.bench.tasks.ssl.pretraining import Pretraining

Draw = Callable[[Tensor, torch.Generator], tuple[Tensor, ...]]
"""From images in [0, 1] and random numbers to the parts of a batch."""


class DrawnBatches(Batches):
    """Shuffled images, from which the parts of each batch are drawn."""

    def __init__(self, task: Pretraining, epoch: int, draw: Draw) -> None:
        self._task, self._draw, self._epoch = task, draw, epoch
        assert isinstance(task.x, Tensor)
        super().__init__((task.x,), task.batch, task.seed, epoch=epoch, drop_last=True)

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        generator = stream(self._task.seed, f"views of epoch {self._epoch}")
        for (images,) in super().__iter__():
            yield self._draw(images.float() / 255, generator)


class TransformedBatches:
    """The same for large images, and for files: loaded by workers, one by one.

    ``transform`` is one of lightly's, and makes a list of views of a PIL image. The
    workers' random numbers come from the seed and the epoch.
    """

    def __init__(
        self, task: Pretraining, epoch: int, transform: Callable[[Any], list[Tensor]]
    ) -> None:
        generator = stream(task.seed, f"views of epoch {epoch}")
        self._loader: DataLoader[Any] = DataLoader(
            _Pictures(task.x, transform),
            batch_size=min(task.batch, len(task.x)),
            shuffle=True,
            drop_last=True,
            num_workers=task.workers,
            generator=generator,
        )

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        for views in self._loader:
            yield tuple(views)


class _Pictures(Dataset[list[Tensor]]):
    def __init__(
        self, images: Images, transform: Callable[[Any], list[Tensor]]
    ) -> None:
        self._images, self._transform = images, transform

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> list[Tensor]:
        return self._transform(picture(self._images, index))
