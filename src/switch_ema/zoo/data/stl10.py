"""STL-10: 5,000 labelled and 100,000 unlabelled training images of 96 pixels."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from switch_ema.bench.errors import UsageError
from switch_ema.zoo.data.downloads import find_or_download
from switch_ema.zoo.data.images import ImageSet, load_images

SIDE = 96
_UNLABELLED = -1
"""Label of the images without one."""


def load_stl10(*, unlabelled: bool, download: bool) -> ImageSet:
    """Read STL-10 from its published files.

    Args:
        unlabelled: Whether to append the unlabelled training images, with label -1.
        download: Whether torchvision may download missing data.
    """
    paths = find_or_download("stl10", download=download)
    if paths[0].suffix == ".npz":
        return load_images("stl10", 0)
    files = {path.stem: path for path in paths}
    parts = ("train", "unlabeled") if unlabelled else ("train",)
    x, y = _images(files, parts), _labels(files, "train")
    without = torch.full((len(x) - len(y),), _UNLABELLED)
    y_test = _labels(files, "test")
    return ImageSet(x, torch.cat([y, without]), _images(files, ("test",)), y_test)


def _images(files: Mapping[str, Path], parts: tuple[str, ...]) -> Tensor:
    """Read files of images into one tensor; their columns come before their rows.

    A single file is mapped: memory is taken by what is used of it, and processes share
    it. Several are read a thousand images at a time: a second copy of all unlabelled
    images would take 2.8 GB.
    """
    paths, each = [files[f"{part}_X"] for part in parts], 3 * SIDE * SIDE
    for path in paths:
        size = path.stat().st_size
        if size % each or not size:
            raise UsageError(
                f"{path} must hold whole images of {each:,} bytes, got {size:,} bytes."
            )
    if len(paths) == 1:
        # Copy on write: torch warns of arrays that cannot be written.
        mapped = torch.from_numpy(np.memmap(paths[0], np.uint8, "c"))
        return mapped.view(-1, 3, SIDE, SIDE).transpose(2, 3)
    count = sum(path.stat().st_size for path in paths) // each
    images, done = torch.empty(count, 3, SIDE, SIDE, dtype=torch.uint8), 0
    for path in paths:
        with path.open("rb") as file:
            while len(read := np.fromfile(file, np.uint8, 1000 * each)):
                own = torch.from_numpy(read).view(-1, 3, SIDE, SIDE).transpose(2, 3)
                images[done : done + len(own)] = own
                done += len(own)
    return images


def _labels(files: Mapping[str, Path], part: str) -> Tensor:
    """Read labels, which count from 1."""
    path = files[f"{part}_y"]
    labels = torch.from_numpy(np.fromfile(path, dtype=np.uint8)).long() - 1
    images = files[f"{part}_X"].stat().st_size // (3 * SIDE * SIDE)
    if len(labels) != images or labels.min() < 0:
        raise UsageError(
            f"{path} must have one label from 1 for each of {images:,} images, got "
            f"{len(labels):,} labels from {int(labels.min()) + 1}."
        )
    return labels
