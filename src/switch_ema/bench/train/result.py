"""Result of training a cell: values, costs and sample images."""

import io
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from switch_ema.bench.train.starts import Starts
from switch_ema.bench.train.task_checks import Trivial
from switch_ema.bench.train.values import Values

_IN_ONE_ROW = 12
"""Up to this many images form one row; more form a square grid."""

_SMALLEST = 64
"""Pixels of the shorter side of an image; smaller images are enlarged."""


@dataclass
class CellResult:
    """Outcome of training a cell."""

    status: str = "done"
    message: str = ""
    values: Values = field(default_factory=dict)
    train_seconds: float = 0.0
    evaluate_seconds: float = 0.0
    memory_mb: float = 0.0
    """Size of the training's state per seed, see ``state_mb``; 0 if unknown."""
    origin: str = ""
    """Origin of the initial weights, if the task gives one."""
    share: float | None = None
    """Learning rate factor of a control with ``lr*f``."""
    trivial: Trivial = field(default_factory=dict)
    """Scores of trivial predictors, if requested."""
    samples: dict[str, dict[str, bytes]] = field(default_factory=dict)
    """Sample images as PNG files, by method and caption."""
    trained: dict[str, str] = field(default_factory=dict)
    """Description of network, optimizer, batches and schedule."""
    options: dict[str, str] = field(default_factory=dict)
    """Options of each method, including defaults."""
    starts: Starts = field(default_factory=Starts)
    """Digests that tell whether methods are paired."""
    idle: dict[str, str] = field(default_factory=dict)
    """Methods that did not act, and why."""


def to_png(pictures: Mapping[str, Tensor]) -> dict[str, bytes]:
    """Arrange the images of each caption, N x C x H x W in [0, 1], in one grid.

    Small images are enlarged by an integer factor, without smoothing.
    """
    return {caption: _png(grid) for caption, grid in pictures.items()}


def _png(pictures: Tensor) -> bytes:
    # Imported here: it takes seconds, and most tasks make no images.
    from torchvision.utils import make_grid, save_image

    count, _, height, width = pictures.shape
    columns = count if count <= _IN_ONE_ROW else math.ceil(math.sqrt(count))
    times = max(1, math.ceil(_SMALLEST / min(height, width)))
    larger = pictures.repeat_interleave(times, 2).repeat_interleave(times, 3)
    # A grey border separates images with a white or a black background.
    grid = make_grid(larger, nrow=columns, padding=2, pad_value=0.5)
    file = io.BytesIO()
    save_image(torch.as_tensor(grid), file, format="png")
    return file.getvalue()
