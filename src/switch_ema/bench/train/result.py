"""Result of training a cell: values, costs and sample images."""

import math
import struct
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from switch_ema.bench.train.starts import Starts
from switch_ema.bench.train.task_checks import Trivial
from switch_ema.bench.train.values import Values

_IN_ONE_ROW = 12
"""Up to this many images form one row; more form a square grid."""

_BORDER = 2
"""Pixels between images."""

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
    training_losses: dict[str, list[float]] = field(default_factory=dict)
    """Training loss of the final weights by method, one per seed, if measured."""
    origin: str = ""
    """Origin of the initial weights, if the task gives one."""
    share: float | None = None
    """The value of f for a control that uses it."""
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
    processor_seconds: float = 0.0
    """Processor time of training and evaluation, over all threads and workers."""


def to_png(pictures: Mapping[str, Tensor]) -> dict[str, bytes]:
    """Arrange the images of each caption, N x C x H x W in [0, 1], in one grid.

    Small images are enlarged by an integer factor, without smoothing.
    """
    return {caption: _png(grid) for caption, grid in pictures.items()}


def _png(pictures: Tensor) -> bytes:
    count, _, height, width = pictures.shape
    columns = count if count <= _IN_ONE_ROW else math.ceil(math.sqrt(count))
    times = max(1, math.ceil(_SMALLEST / min(height, width)))
    larger = pictures.repeat_interleave(times, 2).repeat_interleave(times, 3).cpu()
    # A grey border separates images with a white or a black background.
    border = _BORDER if count > 1 else 0
    cell = (height * times + border, width * times + border)
    size = (math.ceil(count / columns) * cell[0], columns * cell[1])
    grid = torch.full((3, size[0] + border, size[1] + border), 0.5)
    for place, picture in enumerate(larger):
        row, column = divmod(place, columns)
        y, x = row * cell[0], column * cell[1]
        inside = grid[:, y + border : y + cell[0], x + border : x + cell[1]]
        inside.copy_(picture.expand_as(inside))  # grey images have one channel
    return _encoded((grid * 255 + 0.5).clamp(0, 255).to(torch.uint8))


def _encoded(pixels: Tensor) -> bytes:
    """Write pixels, 3 x H x W, as a PNG file."""
    _, height, width = pixels.shape
    rows = pixels.permute(1, 2, 0).reshape(height, -1)
    # Each row begins with its filter, 0 for none.
    raw = torch.nn.functional.pad(rows, (1, 0)).numpy().tobytes()
    chunks = {
        b"IHDR": struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0),
        b"IDAT": zlib.compress(raw),
        b"IEND": b"",
    }
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + _checksum(kind + data)
        for kind, data in chunks.items()
    )


def _checksum(data: bytes) -> bytes:
    return struct.pack(">I", zlib.crc32(data))


class Clock:
    """Counts seconds, and those of the processor."""

    def __init__(self) -> None:
        self._seconds, self._processor = time.perf_counter(), time.process_time()

    def lap(self) -> tuple[float, float]:
        """Return the times since the last lap."""
        before = self._seconds, self._processor
        self._seconds, self._processor = time.perf_counter(), time.process_time()
        return self._seconds - before[0], self._processor - before[1]
