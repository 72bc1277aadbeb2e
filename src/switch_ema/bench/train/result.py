"""What the training of a cell returns: values, and pictures as PNG files."""

import io
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from switch_ema.bench.train.task_checks import Trivial
from switch_ema.bench.train.values import Values

_IN_ONE_ROW = 12
"""Up to so many pictures stand side by side; more are a square."""

_SMALLEST = 64
"""Pixels of the shorter side of a picture; smaller ones are enlarged."""


@dataclass
class CellResult:
    """What a cell has produced."""

    status: str = "done"
    message: str = ""
    values: Values = field(default_factory=dict)
    train_seconds: float = 0.0
    evaluate_seconds: float = 0.0
    memory_mb: float = 0.0
    origin: str = ""
    """Where the initial weights come from, if the task says so."""
    share: float | None = None
    """Factor of the learning rate in a control with ``lr*f``."""
    trivial: Trivial = field(default_factory=dict)
    """Values of trivial predictors, if they were asked for."""
    samples: dict[str, dict[str, bytes]] = field(default_factory=dict)
    """Pictures of each method, by caption, as PNG files."""
    trained: dict[str, str] = field(default_factory=dict)
    """What was trained, in words: network, optimizer, batches and schedule."""
    options: dict[str, str] = field(default_factory=dict)
    """What each method's options were, those not given included."""


def to_png(pictures: Mapping[str, Tensor]) -> dict[str, bytes]:
    """Set the pictures of each caption, N x C x H x W in [0, 1], in one grid.

    Small pictures are enlarged by a whole number, pixel by pixel, without smoothing.
    """
    return {caption: _png(grid) for caption, grid in pictures.items()}


def _png(pictures: Tensor) -> bytes:
    # Here, as it takes seconds and most tasks make no pictures.
    from torchvision.utils import make_grid, save_image

    count, _, height, width = pictures.shape
    columns = count if count <= _IN_ONE_ROW else math.ceil(math.sqrt(count))
    times = max(1, math.ceil(_SMALLEST / min(height, width)))
    larger = pictures.repeat_interleave(times, 2).repeat_interleave(times, 3)
    # A grey border tells pictures with a white or a black ground apart.
    grid = make_grid(larger, nrow=columns, padding=2, pad_value=0.5)
    file = io.BytesIO()
    save_image(torch.as_tensor(grid), file, format="png")
    return file.getvalue()
