"""Subsets, label noise and held-out images of a task, drawn from its seed."""

from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

from switch_ema._checks import check_count
from switch_ema.zoo.data.images import ImageSet
from switch_ema.zoo.data.splits import choose_split, redraw_labels, stream
from switch_ema.zoo.data.vision import VisionSet

Data = TypeVar("Data", ImageSet, VisionSet)


def subset(data: Data, size: int | None, test_size: int | None, seed: int) -> Data:
    """Keep a random subset of the training and test images.

    Args:
        data: The images.
        size: Number of training images to keep, at least 10; None for all.
        test_size: Number of test images to keep, likewise.
        seed: Seeds the selection.
    """
    generator = stream(seed, "subset")
    train = _draw("size", size, len(data.y_train), generator)
    test = _draw("test_size", test_size, len(data.y_test), generator)
    return replace(
        data,
        x_train=data.x_train[train],
        y_train=data.y_train[train],
        x_test=data.x_test[test],
        y_test=data.y_test[test],
    )


def _draw(name: str, size: int | None, have: int, generator: torch.Generator) -> Tensor:
    size = have if size is None else check_count(name, size, 10)
    if size > have:
        raise ValueError(f"{name} must be at most {have}, got {size}.")
    return torch.randperm(have, generator=generator)[:size]


def split_and_redraw(
    data: VisionSet, noise: float, seed: int, *, split: str
) -> VisionSet:
    """Add label noise to the training data, and choose the evaluation data.

    Args:
        data: All images.
        noise: Share of the training labels to redraw; held-out images keep their
            labels.
        seed: Seeds the labels and the held-out images.
        split: ``test``, or ``validation`` for a fifth of the training images.
    """
    noisy = redraw_labels(data.y_train, noise, data.classes, seed)
    (x_train, y_train), (x_test, y_test) = choose_split(
        split,
        seed,
        train=(data.x_train, noisy),
        test=(data.x_test, data.y_test),
        clean=(data.x_train, data.y_train),
    )
    return replace(data, x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)
