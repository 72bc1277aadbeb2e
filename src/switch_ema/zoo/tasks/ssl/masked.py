"""Tasks that mask a part of each image and reconstruct it."""

import math
from abc import abstractmethod
from functools import cached_property, partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from switch_ema.bench.task import Loader
from switch_ema.zoo.data.sources import need
from switch_ema.zoo.tasks.ssl.pretraining import Pretraining
from switch_ema.zoo.tasks.ssl.views import DrawnBatches, ViewLoader, crop


class MaskedModel(nn.Module):
    """A vision transformer that sees masked images, and a decoder."""

    @property
    @abstractmethod
    def encoder(self) -> nn.Module:
        """The part that is kept after pre-training."""

    @property
    def patch(self) -> int:
        """Height and width of a patch."""
        vit: Any = self.encoder
        return int(vit.patch_embed.patch_size[0])

    @property
    def values(self) -> int:
        """Values per patch."""
        vit: Any = self.encoder
        return self.patch**2 * int(vit.patch_embed.proj.in_channels)

    @abstractmethod
    def forward(self, images: Tensor, mask: Tensor) -> Tensor:
        """Predict the pixels of every patch: (count, patches, values)."""


class Masked(Pretraining):
    """Batches are crops and masks; the model is a :class:`MaskedModel`."""

    networks = ("deit-s", "deit-t", "deit-b")
    share: ClassVar[float]
    """Share of the image to mask."""
    unit: ClassVar[int]
    """Side of a masked square, in patches."""
    least_crop: ClassVar[float]
    """Minimum share of the image's area in a crop."""

    def pool(self) -> str:
        """Average the patches: reconstruction does not train the class token."""
        return "avg"

    def batches(self, epoch: int) -> Loader:
        """Shuffle the images; draw a crop and a mask for each."""
        if self.one_by_one:
            return self._views.epoch(epoch)
        return DrawnBatches(self, epoch, self._draw)

    @cached_property
    def _views(self) -> ViewLoader:
        """Crops of large images, each with its mask."""
        transform = need("lightly.transforms").MAETransform(
            input_size=self.image_size,
            min_scale=self.least_crop,
            normalize={},  # on the device
        )
        one_mask = partial(_draw_mask, self.grid, self.unit, self.share)
        return ViewLoader(self, transform, one_mask)

    @property
    def augmentation(self) -> str:
        """The crops and masks in words, for those who compare recipes."""
        return (
            f"crops of {self.least_crop:g} to 1 of the area, flips; {self.share:.0%} "
            f"of {self.grid}x{self.grid} patches masked, in squares of {self.unit}"
        )

    def _draw(self, images: Tensor, generator: torch.Generator) -> tuple[Tensor, ...]:
        mirrored = self.data.mirrored
        view = crop(images, generator, least=self.least_crop, mirrored=mirrored)
        return self.prepare(view), self.masks(len(images), generator)

    def masks(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw masks (count, patches), True for masked patches."""
        return draw_masks(count, self.grid, self.unit, self.share, generator)

    @cached_property
    def grid(self) -> int:
        """Patches per side of an image."""
        with torch.random.fork_rng(devices=[]):
            patches: Any = self.encoder().patch_embed
        return int(patches.grid_size[0])

    def encoder_of(self, model: nn.Module) -> nn.Module:
        """Return the encoder without the decoder."""
        assert isinstance(model, MaskedModel)
        return model.encoder


def draw_masks(
    count: int,
    grid: int,
    unit: int,
    share: float,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Mask the same number of squares in each image, at random positions.

    >>> draw_masks(2, grid=4, unit=2, share=0.5).sum(1)
    tensor([8, 8])
    """
    side = -(-grid // unit)
    order = torch.rand(count, side**2, generator=generator).argsort(1)
    # The next whole number, but 0.6 * 5 squares are 3 in spite of rounding.
    squares = math.ceil(round(share * side**2, 6))
    hidden = (order < squares).view(count, side, side)
    hidden = hidden.repeat_interleave(unit, 1).repeat_interleave(unit, 2)
    return hidden[:, :grid, :grid].flatten(1)


def _draw_mask(grid: int, unit: int, share: float) -> tuple[Tensor]:
    return (draw_masks(1, grid, unit, share)[0],)


def patches_of(images: Tensor, patch: int) -> Tensor:
    """Cut images into patches: (count, patches, values)."""
    patches: Tensor = need("lightly.models.utils").patchify(images, patch)
    return patches


def hidden_mean(errors: Tensor, mask: Tensor) -> Tensor:
    """Average errors (count, patches, values) over the masked patches."""
    return (errors.mean(2) * mask).sum() / mask.sum()
