"""Views: random crops, flips and colours, of whole batches on tensors.

Small images are changed by the batch, which is many times faster than one by one. As
usual for images of 32 pixels or less there is no blur; digits are not mirrored, since
that makes other digits. At the paper's scale lightly's transforms make the views.
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

GREY = torch.tensor([0.299, 0.587, 0.114])
"""Shares of red, green and blue in brightness."""


def make_view(
    images: Tensor, generator: torch.Generator, *, least: float, mirrored: bool
) -> Tensor:
    """Draw a view of each image: a crop, mirrored or not, in other colours.

    Args:
        images: (count, channels, height, width) in [0, 1].
        generator: All that is random comes from it.
        least: Smallest share of the image's area that a crop keeps.
        mirrored: Whether images may be mirrored.
    """
    return recolour(crop(images, generator, least=least, mirrored=mirrored), generator)


def crop(
    images: Tensor, generator: torch.Generator, *, least: float, mirrored: bool
) -> Tensor:
    """Cut a random part out of each image and bring it to the image's size."""
    count = len(images)
    area = _uniform(count, least, 1, generator)
    # Between 3:4 and 4:3, as usual, even in the logarithm.
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
    """Change brightness, contrast and saturation; make some images grey."""
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
