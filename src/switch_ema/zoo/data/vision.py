"""Labelled images: small datasets in memory, large ones in files."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Union

import numpy as np
import torch
from torch import Tensor

from switch_ema.bench.broken_files import BrokenFile
from switch_ema.bench.errors import UsageError
from switch_ema.zoo.data import sources
from switch_ema.zoo.data.images import ImageSet, load_images
from switch_ema.zoo.data.stl10 import load_stl10


class ImageFiles:
    """Image files, read on access."""

    def __init__(self, paths: Sequence[str]) -> None:
        # One array: workers would copy a list, whose reference counts they change.
        self._paths = np.array([os.fsencode(path) for path in paths], dtype=np.bytes_)

    @property
    def paths(self) -> list[str]:
        """The paths of all files."""
        return [self.path(index) for index in range(len(self))]

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, which: Tensor) -> "ImageFiles":
        """Select several, as from a tensor of images."""
        chosen = ImageFiles([])
        chosen._paths = self._paths[which.numpy()]
        return chosen

    def path(self, index: int) -> str:
        """Return the path of one file."""
        return os.fsdecode(self._paths[index])

    def open(self, index: int) -> Any:
        """Read one image as RGB; raise BrokenFile if that is impossible."""
        path = self.path(index)
        try:
            with sources.need("PIL.Image").open(path) as image:
                return image.convert("RGB")
        except Exception as error:  # Pillow raises many kinds for a damaged file
            reason = getattr(error, "strerror", None) or str(error)
            raise BrokenFile(path, reason.replace(f" {path!r}", "")) from error


Images = Union[Tensor, ImageFiles]


@dataclass(frozen=True)
class VisionSet:
    """Labelled images; in memory, bytes (count, channels, side, side)."""

    x_train: Images
    y_train: Tensor
    x_test: Images
    y_test: Tensor
    classes: int
    mean: Tensor
    """Per-channel mean of the pixels, in [0, 255]."""
    deviation: Tensor
    """Per-channel standard deviation of the pixels."""
    mirrored: bool
    """Whether a mirrored image has the same class."""

    def normalise(self, images: Tensor) -> Tensor:
        """Normalise bytes to mean 0 and standard deviation 1."""
        return (images.float() - self.mean) / self.deviation


DATASETS = ("digits", "cifar10", "cifar100", "stl10", "imagenet")
TRAINING_IMAGES = {
    "digits": 1000,
    "mnist": 60_000,
    "fashion_mnist": 60_000,
    "cifar10": 50_000,
    "cifar100": 50_000,
    "stl10": 5000,
    "imagenet": 1_281_167,
}
"""Number of training images as published; a folder may hold fewer."""


_WITHOUT_MIRRORS = ("digits", "mnist")
"""Flipping a digit changes its class."""


def load_vision(
    name: str, seed: int, *, folder: str | None = None, download: bool = False
) -> VisionSet:
    """Load a dataset by name.

    Args:
        name: One of ``DATASETS``.
        seed: Seeds the split of the digits, which have no published one.
        folder: Folder of ``imagenet``, or any folder with its layout: train/ and val/
            with one folder per class. By default imagenet/ in the user's data folder.
        download: Whether torchvision may download missing data.
    """
    if name == "imagenet":
        return _open_folders(_imagenet_folder(folder))
    if folder is not None:
        raise UsageError(f"folder applies to the dataset imagenet, not to {name}.")
    if name == "stl10":
        return in_memory(name, load_stl10(unlabelled=False, download=download))
    return in_memory(name, load_images(name, seed, download=download))


def in_memory(name: str, data: ImageSet, *, classes: int | None = None) -> VisionSet:
    """Add normalisation, number of classes and flipping to images in memory.

    Mean and standard deviation are computed on the training images.

    Args:
        name: The dataset; decides whether flipping keeps the class.
        data: The images.
        classes: Number of classes; by default counted from the labels.
    """
    return VisionSet(
        data.x_train,
        data.y_train,
        data.x_test,
        data.y_test,
        data.classes if classes is None else classes,
        *data.statistics(),
        mirrored=name not in _WITHOUT_MIRRORS,
    )


def picture(images: Images, index: int) -> Any:
    """Return one image as a PIL image, for transforms that need one."""
    if isinstance(images, ImageFiles):
        return images.open(index)
    functional = sources.need("torchvision.transforms.v2.functional")
    return functional.to_pil_image(images[index])


def _imagenet_folder(given: str | None) -> Path:
    if given is not None:
        return Path(given).expanduser()
    folder = sources.find_folder("imagenet")
    if folder is None:
        raise sources.not_found("imagenet")
    return folder


@lru_cache(maxsize=1)
def _open_folders(folder: Path) -> VisionSet:
    """List the files of train/ and val/; classes are numbered by name."""
    _check_layout(folder)
    make = sources.need("torchvision.datasets").ImageFolder
    try:
        train, test = make(folder / "train"), make(folder / "val")
    except FileNotFoundError as error:  # a class without images
        raise UsageError(str(error).partition("\n")[0]) from None
    (x_train, y_train), (x_test, y_test) = (
        (ImageFiles([path for path, _ in part.samples]), torch.tensor(part.targets))
        for part in (train, test)
    )
    constants = sources.need("timm.data.constants")
    mean, deviation = (
        255 * torch.tensor(values).view(-1, 1, 1)
        for values in (
            constants.IMAGENET_DEFAULT_MEAN,
            constants.IMAGENET_DEFAULT_STD,
        )
    )
    classes = len(train.classes)
    return VisionSet(
        x_train, y_train, x_test, y_test, classes, mean, deviation, mirrored=True
    )


def _check_layout(folder: Path) -> None:
    """Raise if the folder does not have train/ and val/ with the same classes."""
    classes = {part: _subfolders(folder / part) for part in ("train", "val")}
    expected = f"{folder} must contain train/<class>/<image> and val/<class>/<image>"
    if not all(classes.values()):
        found = [_found(folder / part) for part in classes]
        there = (
            sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
        )
        others = [name for name in there if name not in classes][:5]
        beside = f"; also {', '.join(others)}" if others else ""
        raise UsageError(f"{expected}; found {' and '.join(found)}{beside}.")
    if classes["train"] != classes["val"]:
        odd = sorted(classes["train"] ^ classes["val"])
        raise UsageError(
            f"{expected} with the same classes; found {len(classes['train'])} and "
            f"{len(classes['val'])}, and only in one of them "
            f"{', '.join(odd[:5])}{' and others' if len(odd) > 5 else ''}."
        )


def _subfolders(folder: Path) -> set[str]:
    if not folder.is_dir():
        return set()
    return {entry.name for entry in os.scandir(folder) if entry.is_dir()}


def _found(folder: Path) -> str:
    if not folder.is_dir():
        return f"no {folder.name}/"
    classes = len(_subfolders(folder))
    files = sum(entry.is_file() for entry in os.scandir(folder))
    return f"{folder.name}/ with {classes} folders and {files} files"
