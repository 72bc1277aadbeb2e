"""Batches of augmented images for training and of plain images for tests."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from switch_ema.bench.task import Batches
from switch_ema.zoo.data import sources
from switch_ema.zoo.data.splits import stream
from switch_ema.zoo.data.vision import Images, VisionSet, picture
from switch_ema.zoo.procedures import Augmentation, augment


class ImageBatches(Batches):
    """One epoch of training images, augmented.

    In-memory images that are only shifted and flipped are transformed a batch at a
    time. Others pass through PIL transforms one by one, in worker processes if
    ``workers`` is set. Random erasing and blending come last in both cases.

    Args:
        data: Training images and how to normalise them.
        augmentation: The augmentation.
        resolution: Height and width of the result.
        batch: Images per batch.
        seed: Seeds the order and the augmentation, together with the epoch.
        epoch: Index of the epoch.
        workers: Processes that read and augment images one by one.
    """

    def __init__(
        self,
        data: VisionSet,
        augmentation: Augmentation,
        *,
        resolution: int,
        batch: int,
        seed: int,
        epoch: int,
        workers: int = 0,
    ) -> None:
        super().__init__((data.y_train,), batch, seed, epoch=epoch, drop_last=True)
        self.order = augment.repeat(self.order, augmentation.repeats)
        self._data, self._augmentation, self._resolution = (
            data,
            augmentation,
            resolution,
        )
        self._generator = stream(seed, f"augmentation of epoch {epoch}")
        self._flip = augmentation.flip and data.mirrored
        self._workers = workers

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        erase = augment.erasing(self._augmentation)
        blend = augment.mixing(self._augmentation, self._data.classes)
        images = self._data.x_train
        if self._augmentation.works_on_batches and isinstance(images, Tensor):
            batches = self._by_batch(images)
        else:
            batches = self._one_by_one()
        for x, y in batches:
            x = self._data.normalise(x)
            x = x if erase is None else erase(x)
            yield (x, y) if blend is None else blend(x, y)

    def _by_batch(self, images: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        for chosen in torch.split(self.order, self.size):
            x = images[chosen]
            if self._augmentation.crop == "shifted":
                x = augment.shift(x, x.shape[-1] // 8, self._generator)
            x = augment.mirror(x, self._generator) if self._flip else x
            x = augment.resize_and_crop(x, self._resolution, 1.0)
            yield x, self._data.y_train[chosen]

    def _one_by_one(self) -> Iterator[tuple[Tensor, Tensor]]:
        transform = augment.image_transform(
            self._augmentation, self._resolution, flip=self._flip
        )
        dataset = _Pictures(self._data.x_train, self._data.y_train, transform)
        return iter(
            DataLoader(
                dataset,
                batch_size=self.size,
                sampler=self.order.tolist(),
                num_workers=self._workers,
            )
        )


def evaluation_batches(
    data: VisionSet,
    augmentation: Augmentation,
    *,
    resolution: int,
    batch: int = 250,
    workers: int = 0,
) -> Iterator[Tensor]:
    """Yield normalised centre crops of all test images, in order."""
    share = augmentation.test_crop
    if isinstance(data.x_test, Tensor):
        for images in torch.split(data.x_test, batch):
            middle = augment.resize_and_crop(images, resolution, share)
            yield data.normalise(middle)
        return
    transform = partial(augment.resize_and_crop, resolution=resolution, share=share)
    dataset = _Pictures(data.x_test, data.y_test, transform)
    for images, _ in DataLoader(dataset, batch_size=batch, num_workers=workers):
        yield data.normalise(images)


class _Pictures(Dataset[tuple[Tensor, int]]):
    """Images and labels, with a transform on PIL images."""

    def __init__(
        self, images: Images, labels: Tensor, transform: augment.Transform
    ) -> None:
        self._images, self._labels, self._transform = images, labels, transform

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        functional = sources.need("torchvision.transforms.v2.functional")
        changed = self._transform(picture(self._images, index))
        return functional.pil_to_tensor(changed), int(self._labels[index])
