"""Which images a task trains and tests on, drawn from its seed."""

from dataclasses import replace

import torch
from torch import Tensor

from switch_ema._checks import check_count
from switch_ema.bench.data.splits import hold_out, redraw_labels, stream
from switch_ema.bench.data.vision import VisionSet


def subset(
    data: VisionSet, size: int | None, test_size: int | None, seed: int
) -> VisionSet:
    """Keep a random part of the training and of the test images."""
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
    data: VisionSet, noise: float, seed: int, *, validation: bool
) -> VisionSet:
    """Redraw training labels, and hold out training images to evaluate on."""
    clean = data.y_train
    noisy = redraw_labels(clean, noise, data.classes, seed)
    if not validation:
        return replace(data, y_train=noisy)
    # Held-out labels stay clean: they measure what the test measures.
    stay, held = hold_out(len(clean), seed)
    return replace(
        data,
        x_train=data.x_train[stay],
        y_train=noisy[stay],
        x_test=data.x_train[held],
        y_test=clean[held],
    )
