"""Batches of views: random crops, flips and colour changes of images.

Small images are transformed per batch, which is many times faster than one by one. As
usual for images of 32 pixels or less there is no blur; digits are not flipped, since
that changes their class. At the paper's scale lightly's transforms make the views.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from switch_ema.bench.loaders import CPU, WHOLE, Batches, BatchPart
from switch_ema.zoo.data.sample_loader import EpochOrder, SampleLoader
from switch_ema.zoo.data.splits import stream
from switch_ema.zoo.data.vision import Images, picture
from switch_ema.zoo.procedures import UNCHANGED
from switch_ema.zoo.procedures.finishing import Finishing
from switch_ema.zoo.tasks.ssl.pretraining import Pretraining

GREY = torch.tensor([0.299, 0.587, 0.114])
"""Weights of red, green and blue in brightness."""
Draw = Callable[[Tensor, torch.Generator], tuple[Tensor, ...]]
"""Makes the tensors of a batch from images in [0, 1] and a random generator."""


class DrawnBatches(Batches):
    """Shuffled batches of images, each turned into views or masks by ``draw``."""

    def __init__(self, task: Pretraining, epoch: int, draw: Draw) -> None:
        self._task, self._draw, self._epoch = task, draw, epoch
        assert isinstance(task.x, Tensor)
        super().__init__((task.x,), task.batch, task.seed, epoch=epoch, drop_last=True)

    def batches(
        self, *, start: int = 0, part: BatchPart = WHOLE, device: torch.device = CPU
    ) -> Iterator[tuple[Tensor, ...]]:
        """Draw whole batches, since all of them share one generator."""
        generator = stream(self._task.seed, f"views of epoch {self._epoch}")
        for index, (images,) in enumerate(super().batches()):
            drawn = self._draw(images.float() / 255, generator)
            if index >= start:
                yield tuple(part.take(tensor).to(device) for tensor in drawn)


class ViewLoader:
    """Views of large or on-disk images, made one by one by workers, for any epoch.

    Args:
        task: Has the images and says how to normalise them.
        transform: One of lightly's: makes a list of views of a PIL image, with values
            in [0, 1].
        extras: Draws what else belongs to an example, such as a mask.
    """

    def __init__(
        self,
        task: Pretraining,
        transform: Callable[[Any], list[Tensor]],
        extras: Callable[[], tuple[Tensor, ...]] = tuple,
    ) -> None:
        self.task = task
        self.finish = Finishing(
            UNCHANGED,
            mean=task.data.mean,
            deviation=task.data.deviation,
            classes=task.data.classes,
            seed=task.seed,
        )
        samples = _Views(task.x, transform, extras)
        self.reader = SampleLoader(samples, workers=task.workers, broken=task.broken)

    def epoch(self, epoch: int) -> "TransformedBatches":
        """Return the batches of an epoch."""
        return TransformedBatches(self, epoch)


class TransformedBatches(Batches):
    """The views of one epoch, normalised on the device."""

    def __init__(self, loader: ViewLoader, epoch: int) -> None:
        self._loader, self._task = loader, loader.task
        self._purpose = f"views of epoch {epoch}"
        everything = (torch.arange(len(self._task.x)),)
        super().__init__(
            everything, self._task.batch, self._task.seed, epoch=epoch, drop_last=True
        )

    def batches(
        self, *, start: int = 0, part: BatchPart = WHOLE, device: torch.device = CPU
    ) -> Iterator[tuple[Tensor, ...]]:
        """Yield the views of each batch, and what else was drawn."""
        generator = stream(self._task.seed, self._purpose)
        seeds = torch.randint(2**31, self.order.shape, generator=generator)
        order = EpochOrder(self.order, seeds, self.size)
        for chunks in self._loader.reader.chunks(
            order, start=start, part=part, pinned=device.type == "cuda"
        ):
            views = zip(*(views for views, _ in chunks), strict=True)
            extras = zip(*(extras for _, extras in chunks), strict=True)
            yield (
                *(self._loader.finish.normalise(view, device) for view in views),
                *(torch.cat(extra).to(device, non_blocking=True) for extra in extras),
            )


class _Views:
    """Views as bytes, a quarter of the memory of floats, and extras."""

    def __init__(
        self,
        images: Images,
        transform: Callable[[Any], list[Tensor]],
        extras: Callable[[], tuple[Tensor, ...]],
    ) -> None:
        self._images, self._transform, self._extras = images, transform, extras

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> tuple[list[Tensor], tuple[Tensor, ...]]:
        views = self._transform(picture(self._images, index))
        return [view.mul(255).round_().byte() for view in views], self._extras()


def make_view(
    images: Tensor, generator: torch.Generator, *, least: float, mirrored: bool
) -> Tensor:
    """Draw a view of each image: random crop, flip and colours.

    Args:
        images: (count, channels, height, width) in [0, 1].
        generator: Source of all randomness.
        least: Minimum share of the image's area in a crop.
        mirrored: Whether to flip images at random.
    """
    return recolour(crop(images, generator, least=least, mirrored=mirrored), generator)


def crop(
    images: Tensor, generator: torch.Generator, *, least: float, mirrored: bool
) -> Tensor:
    """Crop each image at random and resize the crop to the image's size."""
    count = len(images)
    area = _uniform(count, least, 1, generator)
    # Aspect ratio log-uniform between 3:4 and 4:3, as usual.
    ratio = _uniform(count, math.log(3 / 4), math.log(4 / 3), generator).exp()
    height = (area / ratio).sqrt().clamp(max=1)
    width = (area * ratio).sqrt().clamp(max=1)
    down, right = torch.rand(2, count, generator=generator) * 2 - 1
    sign = torch.ones(count)
    if mirrored:
        sign = 1 - 2 * (torch.rand(count, generator=generator) < 0.5).float()
    zero = torch.zeros(count)
    rows = [
        torch.stack([sign * width, zero, right * (1 - width)], 1),
        torch.stack([zero, height, down * (1 - height)], 1),
    ]
    grid = affine_grid(torch.stack(rows, 1), list(images.shape), align_corners=False)
    return grid_sample(images, grid, padding_mode="border", align_corners=False)


def recolour(images: Tensor, generator: torch.Generator) -> Tensor:
    """Jitter brightness, contrast and saturation; make some images grey."""
    count, channels = images.shape[:2]
    brightness, contrast, saturation = _uniform((3, count), 0.6, 1.4, generator)
    changed = torch.rand(count, generator=generator) < 0.8
    turned_grey = torch.rand(count, generator=generator) < 0.2
    new = (images * _each(brightness)).clamp(0, 1)
    new = _towards(new, _grey(new).mean((2, 3), keepdim=True), contrast)
    if channels == 3:
        new = _towards(new, _grey(new), saturation)
    new = torch.where(_each(changed), new, images)
    return torch.where(_each(turned_grey), _grey(new).expand_as(new), new)


def _towards(images: Tensor, point: Tensor, factor: Tensor) -> Tensor:
    return (point + (images - point) * _each(factor)).clamp(0, 1)


def _grey(images: Tensor) -> Tensor:
    if images.shape[1] != 3:
        return images
    return (images * GREY[:, None, None]).sum(1, keepdim=True)


def _each(values: Tensor) -> Tensor:
    return values[:, None, None, None]


def _uniform(
    shape: int | tuple[int, ...], low: float, high: float, generator: torch.Generator
) -> Tensor:
    return low + (high - low) * torch.rand(shape, generator=generator)
