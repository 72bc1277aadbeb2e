"""The images that are pre-trained on: in memory, or the files of a folder."""

import os
from dataclasses import replace
from multiprocessing import current_process

import torch

from switch_ema._checks import check_count
from switch_ema.bench.data.images import ImageSet, load_images
from switch_ema.bench.data.splits import hold_out, stream
from switch_ema.bench.data.vision import VisionSet, load_vision
from switch_ema.bench.errors import UsageError
from switch_ema.bench.tasks.ssl.stl10 import load_stl10

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
"""What there is at the paper's scale."""
LIMITS = {"small": (2000, 1000), "paper": (None, None)}
"""By scale: images to train on unless ``size`` is given, and images that are tested."""


def load_for_pretraining(
    dataset: str,
    seed: int,
    *,
    scale: str,
    size: int | None = None,
    folder: str | None = None,
    download: bool = False,
    validation: bool = False,
) -> VisionSet:
    """Load a random part of a dataset; images without a label have the label -1.

    Args:
        dataset: One of ``DATASETS``. The files of ``imagenet`` are listed, not read.
        seed: Draws the part.
        scale: Decides, by ``LIMITS``, how large the part is.
        size: Images to train on, instead.
        folder: Of ``imagenet``, with train/ and val/.
        download: Whether torchvision may download what is not found.
        validation: Whether to test on a fifth of the training images, held out.
    """
    whole = _load(dataset, seed, folder, download)
    data = _draw(dataset, whole, size, LIMITS[scale], seed)
    if not validation:
        return data
    stay, held = hold_out(len(data.y_train), seed)
    held = held[data.y_train[held] >= 0]
    return replace(
        data,
        x_train=data.x_train[stay],
        y_train=data.y_train[stay],
        x_test=data.x_train[held],
        y_test=data.y_train[held],
    )


def _load(
    dataset: str, seed: int, folder: str | None, download: bool
) -> VisionSet | ImageSet:
    if dataset == "imagenet":
        return load_vision(dataset, seed, folder=folder)
    if folder is not None:
        raise UsageError(f"folder is for the dataset imagenet, not for {dataset}.")
    if dataset == "stl10":
        return load_stl10(download=download)
    return load_images(dataset, seed, download=download)


def _draw(
    dataset: str,
    whole: VisionSet | ImageSet,
    size: int | None,
    limits: tuple[int | None, int | None],
    seed: int,
) -> VisionSet:
    have, (usual, tested) = len(whole.y_train), limits
    count = min(usual or have, have) if size is None else check_count("size", size, 20)
    if count > have:
        raise ValueError(f"size must be at most {have}, got {count}.")
    generator = stream(seed, "subset")
    train = torch.randperm(have, generator=generator)[:count]
    test = torch.randperm(len(whole.y_test), generator=generator)[:tested]
    y_train, y_test = whole.y_train[train], whole.y_test[test]
    if isinstance(whole, VisionSet):
        x_train, x_test = whole.x_train[train], whole.x_test[test]
        return replace(
            whole, x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test
        )
    part = ImageSet(whole.x_train[train], y_train, whole.x_test[test], y_test)
    return VisionSet(
        *(part.x_train, y_train, part.x_test, y_test),
        whole.classes,
        *part.statistics(),
        mirrored=dataset not in ("digits", "mnist"),
    )


def count_workers(given: int | None) -> int:
    """Take one worker per core, up to 16, where processes may have children."""
    if given is not None:
        return check_count("workers", given, 0)
    return 0 if current_process().daemon else min(os.cpu_count() or 1, 16)
