"""Counting red blood cells: a stand-in for age regression without faces."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from switch_ema._checks import check_count
from switch_ema.bench.errors import UsageError
from switch_ema.bench.task import Batches, Loader, Recipe
from switch_ema.zoo.data import sources
from switch_ema.zoo.data.coco import CocoImages, open_folder
from switch_ema.zoo.data.splits import choose_split, stream
from switch_ema.zoo.tasks.regression.scalar import (
    ScalarRegression,
    error_metrics,
    for_network,
)

SIDE = 48
_COUNTED = "RBC"
"""The category to count: red blood cells."""


class CellCount(ScalarRegression):
    """Counting red blood cells in a quarter of a microscope image (BCCD).

    A small stand-in on real data for age regression, whose faces cannot be
    redistributed: one number per image, L1 loss, the same networks. A cell belongs to
    the quarter that contains the centre of its box. Some cells are not annotated, so no
    network can be perfect. Training flips quarters in both directions.

    Args:
        seed: Random seed.
        split: Evaluate on ``test`` images or on a held-out fifth of the training images
            (``validation``).
        network: ``resnet18``, ``resnet50`` or ``convnext-t``.
        scale: ``small`` for a small version of the network, or ``paper``.
        folder: Folder with images and annotations in COCO format, instead of BCCD.
        batch: Quarters per step.
    """

    metrics = error_metrics("cells")
    recipe = Recipe(
        # 36 steps per epoch: a switch keeps two thirds of an epoch's progress.
        epochs=12,
        schedule="cosine",
        methods={"ema": {"decay": 0.92}, "switch-ema": {"decay": 0.92}},
    )

    @classmethod
    def recipe_for(cls, options: Mapping[str, Any]) -> Recipe:
        """Return the recipe, shared by all networks."""
        return for_network(cls.recipe, options)

    def __init__(
        self,
        seed: int,
        *,
        split: str = "test",
        network: str = "resnet50",
        scale: str = "small",
        folder: str | None = None,
        batch: int = 32,
    ) -> None:
        super().__init__(seed)
        self.choose_network(network, scale, SIDE)
        self.batch = check_count("batch", batch)
        (x_train, y_train), (x_test, y_test) = load_quarters(bccd_folder(folder))
        deviation, mean = torch.std_mean(x_train, dim=(0, 2, 3), keepdim=True)
        (self.x, self.y), (self.x_eval, self.y_eval) = choose_split(
            split,
            seed,
            ((x_train - mean) / deviation, y_train),
            ((x_test - mean) / deviation, y_test),
        )

    def train_loader(self, epoch: int) -> Loader:
        """Flip the quarters at random, and shuffle them."""
        generator = stream(self.seed, f"mirrors of epoch {epoch}")
        x = self.x
        for axis in (2, 3):
            mirrored = torch.rand(len(x), generator=generator) < 0.5
            x = torch.where(mirrored[:, None, None, None], x.flip(axis), x)
        return Batches((x, self.y), self.batch, self.seed, epoch=epoch, drop_last=True)

    def evaluation_batches(self) -> Sequence[Tensor]:
        """Return the evaluation quarters."""
        return torch.split(self.x_eval, 100)


def bccd_folder(given: str | None) -> Path:
    """Find the folder with the annotations."""
    if given is not None:
        return Path(given).expanduser()
    files = sources.find_files("bccd")
    if files is None:
        raise sources.not_found("bccd")
    return files[0].parent


@lru_cache(maxsize=2)
def load_quarters(folder: Path) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Read training and test images, cut into quarters of 48 by 48 pixels."""
    train, test = open_folder(folder)
    return _quarters(train, folder), _quarters(test, folder)


def _quarters(images: CocoImages, folder: Path) -> tuple[Tensor, Tensor]:
    if _COUNTED not in images.categories:
        known = ", ".join(images.categories)
        raise UsageError(
            f"annotations in {folder} must have the category {_COUNTED}, got {known}."
        )
    if len(images) == 0:
        raise UsageError(f"{folder} has annotations but none of their images.")
    wanted = images.categories.index(_COUNTED) + 1
    pixels, counts = [], []
    for index in range(len(images)):
        image, target = images[index]
        high, wide = image.shape[1] // 2, image.shape[2] // 2
        cells = target["boxes"][target["labels"] == wanted]
        x, y = (cells[:, :2] + cells[:, 2:]).div(2).unbind(1)
        for row in range(2):
            for column in range(2):
                inside = ((y >= high) == bool(row)) & ((x >= wide) == bool(column))
                counts.append(float(inside.sum()))
                top, left = row * high, column * wide
                part = image[:, top : top + high, left : left + wide].float() / 255
                pixels.append(interpolate(part[None], (SIDE, SIDE), mode="area"))
    return torch.cat(pixels), torch.tensor(counts)
