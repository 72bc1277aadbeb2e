"""Images for pre-training: in memory, or the files of a folder."""

from dataclasses import replace

import torch

from switch_ema._checks import check_count
from switch_ema.bench.errors import UsageError
from switch_ema.zoo.data.images import ImageSet, load_images
from switch_ema.zoo.data.selection import subset
from switch_ema.zoo.data.splits import choose_split
from switch_ema.zoo.data.stl10 import load_stl10
from switch_ema.zoo.data.vision import VisionSet, in_memory, load_vision

DATASETS = (
    "digits",
    "mnist",
    "fashion_mnist",
    "cifar10",
    "cifar100",
    "stl10",
    "imagenet",
)
COLOURED = ("cifar10", "cifar100", "stl10", "imagenet")
"""The datasets at the paper's scale."""
_LIMITS = {"small": (2000, 1000), "paper": (None, None)}
"""Default number of training images, and of test images, by scale."""


def load_for_pretraining(
    dataset: str,
    seed: int,
    *,
    scale: str,
    size: int | None = None,
    folder: str | None = None,
    download: bool = False,
    split: str = "test",
) -> VisionSet:
    """Load a random subset of a dataset; unlabelled images have the label -1.

    Args:
        dataset: One of ``DATASETS``. The files of ``imagenet`` are listed, not read.
        seed: Seeds the selection.
        scale: Sets the size of the subset; see ``_LIMITS``.
        size: Number of training images, instead.
        folder: Folder of ``imagenet``, with train/ and val/.
        download: Whether torchvision may download missing data.
        split: ``test``, or ``validation`` to evaluate on a held-out fifth of the
            training images.
    """
    data = _draw(dataset, _load(dataset, seed, folder, download), size, scale, seed)
    (x_train, y_train), (x_test, y_test) = choose_split(
        split, seed, (data.x_train, data.y_train), (data.x_test, data.y_test)
    )
    labelled = torch.nonzero(y_test >= 0).flatten()
    if len(labelled) < len(y_test):  # otherwise without a copy
        x_test, y_test = x_test[labelled], y_test[labelled]
    return replace(data, x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)


def _load(
    dataset: str, seed: int, folder: str | None, download: bool
) -> VisionSet | ImageSet:
    if dataset == "imagenet":
        return load_vision(dataset, seed, folder=folder)
    if folder is not None:
        raise UsageError(f"folder applies to the dataset imagenet, not to {dataset}.")
    if dataset == "stl10":
        return load_stl10(unlabelled=True, download=download)
    return load_images(dataset, seed, download=download)


def _draw(
    dataset: str, whole: VisionSet | ImageSet, size: int | None, scale: str, seed: int
) -> VisionSet:
    usual, tested = _LIMITS[scale]
    if size is not None:
        check_count("size", size, 20)
    elif usual is not None and usual < len(whole.y_train):
        size = usual
    if tested is not None and tested >= len(whole.y_test):
        tested = None
    if isinstance(whole, VisionSet):
        return subset(whole, size, tested, seed)
    if dataset == "stl10" and size is None:
        part = whole  # a shuffled copy of its 105,000 images would take 2.9 GB
    else:
        part = subset(whole, size, tested, seed)
    return in_memory(dataset, part, classes=whole.classes)
