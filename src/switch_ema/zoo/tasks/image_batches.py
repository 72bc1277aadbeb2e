"""Batches of augmented images for training and of plain images for tests."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from switch_ema.bench.broken_files import BrokenFiles
from switch_ema.bench.loaders import CPU, WHOLE, Batches, BatchPart, feed
from switch_ema.bench.sharding import Shard
from switch_ema.zoo.data import sources
from switch_ema.zoo.data.sample_loader import EpochOrder, SampleLoader
from switch_ema.zoo.data.splits import stream
from switch_ema.zoo.data.vision import Images, VisionSet, picture
from switch_ema.zoo.procedures import UNCHANGED, Augmentation, augment
from switch_ema.zoo.procedures.finishing import Finishing, draw_rectangle
from switch_ema.zoo.tasks.metrics import predict


class ImageLoader:
    """Training images, augmented, for any number of epochs.

    In-memory images that are only shifted and flipped are transformed a batch at a
    time. Others pass through PIL transforms one by one, in worker processes if
    ``workers`` is set. Normalising, random erasing and blending come last in both
    cases, on the device.

    Args:
        data: Training images and how to normalise them.
        augmentation: The augmentation.
        resolution: Height and width of the result.
        batch: Images per batch.
        seed: Seeds the order and the augmentation, together with the epoch.
        workers: Processes that read and augment images one by one.
        broken: Records files that cannot be read.
    """

    def __init__(
        self,
        data: VisionSet,
        augmentation: Augmentation,
        *,
        resolution: int,
        batch: int,
        seed: int,
        workers: int = 0,
        broken: BrokenFiles | None = None,
    ) -> None:
        self.data, self.augmentation = data, augmentation
        self.resolution, self.batch, self.seed = resolution, batch, seed
        self.flip = augmentation.flip and data.mirrored
        self.by_batch = augmentation.works_on_batches and isinstance(
            data.x_train, Tensor
        )
        self.finish = Finishing(
            augmentation,
            mean=data.mean,
            deviation=data.deviation,
            classes=data.classes,
            seed=seed,
        )
        transform = partial(
            _augmented,
            transform=augment.image_transform(augmentation, resolution, flip=self.flip),
            augmentation=augmentation,
        )
        samples = _Pictures(data.x_train, data.y_train, transform)
        self.reader = SampleLoader(samples, workers=workers, broken=broken)

    def epoch(self, epoch: int) -> "ImageBatches":
        """Return the batches of an epoch."""
        return ImageBatches(self, epoch)


class ImageBatches(Batches):
    """The training images of one epoch."""

    def __init__(self, loader: ImageLoader, epoch: int) -> None:
        labels, seed = loader.data.y_train, loader.seed
        super().__init__((labels,), loader.batch, seed, epoch=epoch, drop_last=True)
        self.order = augment.repeat(self.order, loader.augmentation.repeats)
        self._loader = loader
        self._purpose = f"augmentation of epoch {epoch}"

    def batches(
        self, *, start: int = 0, part: BatchPart = WHOLE, device: torch.device = CPU
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield images and labels, which blending makes soft."""
        generator = stream(self._loader.seed, self._purpose)
        images = self._loader.data.x_train
        if self._loader.by_batch and isinstance(images, Tensor):
            yield from self._by_batch(images, generator, start, part, device)
            return
        seeds = torch.randint(2**31, self.order.shape, generator=generator)
        order = EpochOrder(self.order, seeds, self.size)
        read = self._loader.reader.chunks(
            order,
            start=start,
            part=part,
            paired=self._loader.augmentation.mixes,
            pinned=device.type == "cuda",
        )
        for index, chunks in enumerate(read, start=start):
            seed = int(seeds[index * self.size])
            yield self._loader.finish(chunks, seed=seed, device=device)

    def _by_batch(
        self,
        images: Tensor,
        generator: torch.Generator,
        start: int,
        part: BatchPart,
        device: torch.device,
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Augment whole batches, since all of them share one generator."""
        loader = self._loader
        for index, chosen in enumerate(torch.split(self.order, self.size)):
            x, y = images[chosen], loader.data.y_train[chosen]
            if loader.augmentation.crop == "shifted":
                x = augment.shift(x, x.shape[-1] // 8, generator)
            x = augment.mirror(x, generator) if loader.flip else x
            own: tuple[Tensor, ...] = (x, y)
            seed = 0
            if loader.augmentation.erasing:
                own = (x, y, _rectangles(x, loader.augmentation, generator))
            if loader.augmentation.mixes:
                seed = int(torch.randint(2**31, (), generator=generator))
            if index < start:
                continue
            taken = part.of(len(x), paired=loader.augmentation.mixes)
            own = own if part.ranks == 1 else tuple(column[taken] for column in own)
            resized = augment.resize_and_crop(own[0], loader.resolution, 1.0)
            yield loader.finish([(resized, *own[1:])], seed=seed, device=device)


class EvaluationImages:
    """Normalised centre crops of all test images, in order.

    Args:
        data: Test images and how to normalise them.
        augmentation: Says which share of an image to keep.
        resolution: Height and width of the result.
        batch: Images per batch, over all workers.
        workers: Processes that read images from files.
        broken: Records files that cannot be read.
    """

    def __init__(
        self,
        data: VisionSet,
        augmentation: Augmentation,
        *,
        resolution: int,
        batch: int = 250,
        workers: int = 0,
        broken: BrokenFiles | None = None,
    ) -> None:
        self._images, self._size = data.x_test, batch
        self._crop = partial(
            augment.resize_and_crop,
            resolution=resolution,
            share=augmentation.test_crop,
        )
        self._finish = Finishing(
            UNCHANGED,
            mean=data.mean,
            deviation=data.deviation,
            classes=data.classes,
            seed=0,
        )
        numbers = torch.arange(len(data.x_test))
        self._reader = SampleLoader(
            _Pictures(data.x_test, numbers, self._crop_picture),
            workers=workers,
            broken=broken,
            replaces=False,
        )
        self.read = numbers
        """Positions of the images that the last pass yielded, without broken files."""

    def predict(
        self, model: nn.Module, shard: Shard, *, to_all: bool = True
    ) -> tuple[Tensor, Tensor]:
        """Return the outputs for the readable images, and their positions, in order.

        Args:
            model: The network.
            shard: The worker's part of the images.
            to_all: Whether all workers need the outputs; otherwise those other than the
                first return a part.
        """
        if len(self._images) < shard.ranks:  # too few to divide
            return predict(model, self), self.read
        join = shard.gather if to_all else shard.collect
        outputs, read = join(predict(model, self, shard)), join(self.read)
        order = read.argsort()
        return outputs[order], read[order]

    def outputs(
        self, model: nn.Module, shard: Shard
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the outputs for the worker's share of each batch, and its positions."""
        device = next(model.parameters()).device
        for images, positions in feed(_Numbered(self), device, part=shard):
            yield model(images).float().cpu(), positions.cpu()

    def __len__(self) -> int:
        return -(-len(self._images) // self._size)

    def __iter__(self) -> Iterator[Tensor]:
        return self.batches()

    def examples(self, batch: int) -> int:
        """Return the number of images in a batch, by its index."""
        return min(self._size, len(self._images) - batch * self._size)

    def batches(
        self, *, start: int = 0, part: BatchPart = WHOLE, device: torch.device = CPU
    ) -> Iterator[Tensor]:
        """Yield the readable images of each batch, unless it has none."""
        self.read = torch.empty(0, dtype=torch.int64)
        for images, positions in self.numbered(start, part, device):
            self.read = torch.cat([self.read, positions.cpu()])
            yield images

    def numbered(
        self, start: int, part: BatchPart, device: torch.device
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the images of each batch with their positions."""
        if isinstance(self._images, Tensor):
            found = self._in_memory(self._images, start, part)
        else:
            found = self._from_files(start, part, device)
        for chunks in found:
            if chunks:
                images, positions = self._finish(chunks, seed=0, device=device)
                yield images, positions

    def _in_memory(
        self, images: Tensor, start: int, part: BatchPart
    ) -> Iterator[list[Any]]:
        for positions in torch.split(torch.arange(len(images)), self._size)[start:]:
            own = part.take(positions)
            yield [(self._crop(images[own]), own)] if len(own) else []

    def _from_files(
        self, start: int, part: BatchPart, device: torch.device
    ) -> Iterator[list[Any]]:
        numbers = torch.arange(len(self._images))
        order = EpochOrder(numbers, torch.zeros_like(numbers), self._size)
        pinned = device.type == "cuda"
        for chunks in self._reader.chunks(order, start=start, part=part, pinned=pinned):
            yield [chunk for chunk in chunks if chunk is not None]

    def _crop_picture(self, image: Any) -> tuple[Tensor]:
        return (_to_bytes(self._crop(image)),)


class _Numbered:
    """Evaluation images with their positions, as a loader."""

    def __init__(self, images: EvaluationImages) -> None:
        self._images = images

    def __len__(self) -> int:
        return len(self._images)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return self.batches()

    def examples(self, batch: int) -> int:
        """Return the number of images in a batch, by its index."""
        return self._images.examples(batch)

    def batches(
        self, *, start: int = 0, part: BatchPart = WHOLE, device: torch.device = CPU
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield images and their positions."""
        return self._images.numbered(start, part, device)


def _augmented(
    image: Any, *, transform: augment.Transform, augmentation: Augmentation
) -> tuple[Tensor, ...]:
    """Return the bytes of an augmented picture and, if needed, what to erase."""
    bytes_ = _to_bytes(transform(image))
    if not augmentation.erasing:
        return (bytes_,)
    return bytes_, draw_rectangle(augmentation, bytes_)


def _to_bytes(image: Any) -> Tensor:
    functional = sources.need("torchvision.transforms.v2.functional")
    found: Tensor = functional.pil_to_tensor(image)
    return found


def _rectangles(
    images: Tensor, augmentation: Augmentation, generator: torch.Generator
) -> Tensor:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(torch.randint(2**31, (), generator=generator)))
        return torch.stack([draw_rectangle(augmentation, image) for image in images])


class _Pictures:
    """Images and labels, with a transform of PIL images."""

    def __init__(
        self,
        images: Images,
        labels: Tensor,
        transform: Callable[[Any], tuple[Tensor, ...]],
    ) -> None:
        self._images, self._labels, self._transform = images, labels, transform

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        image, *others = self._transform(picture(self._images, index))
        return image, int(self._labels[index]), *others
