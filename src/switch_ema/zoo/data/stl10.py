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
    x, y = _images(files, "train"), _labels(files, "train")
    if unlabelled:
        more = _images(files, "unlabeled")
        x = torch.cat([x, more])
        y = torch.cat([y, torch.full((len(more),), _UNLABELLED)])
    return ImageSet(x, y, _images(files, "test"), _labels(files, "test"))


def _images(files: Mapping[str, Path], part: str) -> Tensor:
    """Map a file of images into memory; their columns come before their rows."""
    path, each = files[f"{part}_X"], 3 * SIDE * SIDE
    if path.stat().st_size % each or not path.stat().st_size:
        raise UsageError(
            f"{path} must hold whole images of {each:,} bytes, got "
            f"{path.stat().st_size:,} bytes."
        )
    # Private: reads come from the file, and writes do not go to it.
    pixels = np.memmap(path, dtype=np.uint8, mode="c")
    return torch.from_numpy(pixels).view(-1, 3, SIDE, SIDE).transpose(2, 3)


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
