"""Augmentations of a training procedure, per image or per batch.

Shifts, flips and orders use the given generator. The transforms of timm and torchvision
use the global generators, which the loader seeds for each image. Erasing and blending
are in ``finishing``.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from switch_ema.zoo.data import sources
from switch_ema.zoo.procedures.procedure import Augmentation

Transform = Callable[[Any], Any]


def shift(images: Tensor, most: int, generator: torch.Generator) -> Tensor:
    """Shift each image by up to ``most`` pixels, with reflection padding."""
    count, channels, *sides = images.shape
    moved = torch.randint(-most, most + 1, (2, count, 1), generator=generator)
    rows, columns = (
        _reflect(offsets + torch.arange(side), side)
        for offsets, side in zip(moved, sides, strict=True)
    )
    each = torch.arange(count)[:, None, None, None]
    channel = torch.arange(channels)[None, :, None, None]
    return images[each, channel, rows[:, None, :, None], columns[:, None, None, :]]


def mirror(images: Tensor, generator: torch.Generator) -> Tensor:
    """Flip each image horizontally with probability 1/2."""
    flipped = torch.rand(len(images), generator=generator) < 0.5
    return torch.where(flipped[:, None, None, None], images.flip(3), images)


def repeat(order: Tensor, repeats: int) -> Tensor:
    """Repeat each index several times in a row and truncate to the old length.

    An epoch then has fewer images, each in several augmented versions, mostly in the
    same batch (repeated augmentation).

    >>> repeat(torch.tensor([3, 0, 2, 1]), 3).tolist()
    [3, 3, 3, 0]
    """
    return order.repeat_interleave(repeats)[: len(order)]


def resize_and_crop(images: Any, resolution: int, share: float) -> Any:
    """Resize and centre-crop images, as for tests.

    Args:
        images: A tensor of images, or a PIL image.
        resolution: Height and width of the result.
        share: Share of the resized height and width to keep.
    """
    functional = sources.need("torchvision.transforms.v2.functional")
    side = int(resolution / share)
    height, width = functional.get_size(images)
    if min(height, width) != side:
        bicubic = functional.InterpolationMode.BICUBIC
        images = functional.resize(images, [side], bicubic)
    return functional.center_crop(images, [resolution, resolution])


def image_transform(
    augmentation: Augmentation, resolution: int, *, flip: bool
) -> Transform:
    """Return the transform of a PIL image for training, before it is normalised.

    Args:
        augmentation: Which transforms, and how strong.
        resolution: Height and width of the result.
        flip: Whether to flip at random.
    """
    v2 = sources.need("torchvision.transforms.v2")
    steps: list[Transform] = []
    if augmentation.crop == "resized":
        bicubic = v2.InterpolationMode.BICUBIC
        area = (augmentation.crop_area, 1.0)
        steps.append(v2.RandomResizedCrop(resolution, area, interpolation=bicubic))
    else:
        steps.append(partial(resize_and_crop, resolution=resolution, share=1.0))
    if augmentation.crop == "shifted":
        around = {"padding": resolution // 8, "padding_mode": "reflect"}
        steps.append(v2.RandomCrop(resolution, **around))
    if flip:
        steps.append(v2.RandomHorizontalFlip())
    transform: Transform = v2.Compose(
        [*steps, *_colour_steps(augmentation, resolution)]
    )
    return transform


def _colour_steps(augmentation: Augmentation, resolution: int) -> list[Transform]:
    """Return the colour, rotation and shear operations on PIL images."""
    policies = augmentation.rand_magnitude is not None or augmentation.auto_augment
    found: Any = sources.need("timm.data.auto_augment") if policies else None
    # As in timm: shifts are relative to the image size, and padding is grey.
    options = {"translate_const": int(0.45 * resolution), "img_mean": (124, 116, 104)}
    steps: list[Transform] = []
    if augmentation.rand_magnitude is not None:
        strength = f"m{augmentation.rand_magnitude}-mstd{augmentation.rand_deviation}"
        rand_augment = found.rand_augment_transform(
            f"rand-{strength}-inc1", dict(options)
        )
        for operation in rand_augment.ops:
            if operation.name == "PosterizeIncreasing":
                operation.aug_fn = _posterize
        steps.append(rand_augment)
    if augmentation.auto_augment:
        steps.append(found.auto_augment_transform("original", dict(options)))
    if augmentation.color_jitter:
        v2 = sources.need("torchvision.transforms.v2")
        steps.append(v2.ColorJitter(*[augmentation.color_jitter] * 3))
    return steps


def _posterize(image: Any, bits: int, **options: Any) -> Any:
    """Keep the highest bits of each channel; with none the image is black.

    timm draws 0 bits at magnitudes close to 10. Pillow made such an image black when
    RandAugment and DeiT were published; newer versions raise ValueError.
    """
    if bits == 0:
        return image.point(lambda value: 0)
    return sources.need("timm.data.auto_augment").posterize(image, bits, **options)


def _reflect(positions: Tensor, side: int) -> Tensor:
    """Reflect positions outside the image back into it, without repeating edges."""
    last = side - 1
    return last - (last - positions.abs()).abs()
