"""Pictures that a task makes with a model, as PNG files."""

import io
import math
from collections.abc import Mapping

import torch
from torch import Tensor

IN_ONE_ROW = 12
"""Up to so many pictures stand side by side; more are a square."""

SMALLEST = 64
"""Pixels of the shorter side of a picture; smaller ones are enlarged."""


def to_png(pictures: Mapping[str, Tensor]) -> dict[str, bytes]:
    """Set the pictures of each caption, N x C x H x W in [0, 1], in one grid.

    Small pictures are enlarged by a whole number, pixel by pixel, without smoothing.
    """
    return {caption: _png(grid) for caption, grid in pictures.items()}


def _png(pictures: Tensor) -> bytes:
    # Here, as it takes seconds and most tasks make no pictures.
    from torchvision.utils import make_grid, save_image

    count, _, height, width = pictures.shape
    columns = count if count <= IN_ONE_ROW else math.ceil(math.sqrt(count))
    times = max(1, math.ceil(SMALLEST / min(height, width)))
    larger = pictures.repeat_interleave(times, 2).repeat_interleave(times, 3)
    # A grey border tells pictures with a white or a black ground apart.
    grid = make_grid(larger, nrow=columns, padding=2, pad_value=0.5)
    file = io.BytesIO()
    save_image(torch.as_tensor(grid), file, format="png")
    return file.getvalue()
