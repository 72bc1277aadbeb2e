"""Images as bytes, selected without a copy and converted when they are needed."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d


class ByteImages:
    """Images that are read as floats in [0, 1], averaged down to one size.

    As floats they would take four times the memory, and a shuffled copy as much again.

    Args:
        pixels: Bytes, count x channels x height x width.
        side: Height and width to read them in.
        order: Which images these are, in order; default: all.
    """

    def __init__(self, pixels: Tensor, side: int, order: Tensor | None = None) -> None:
        self._pixels, self._side = pixels, side
        self._order = torch.arange(len(pixels)) if order is None else order

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, which: Tensor | slice) -> "ByteImages":
        """Select several, as from a tensor of images."""
        return ByteImages(self._pixels, self._side, self._order[which])

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image as it is read."""
        return (self._pixels.shape[1], self._side, self._side)

    def floats(self) -> Tensor:
        """Read all of them at once."""
        return scaled(self._pixels[self._order], self._side)

    def parts(self, count: int) -> Iterator[Tensor]:
        """Read ``count`` at a time."""
        for begin in range(0, len(self), count):
            yield self[begin : begin + count].floats()


@dataclass(frozen=True)
class FloatRows:
    """Images whose selection is read at once, for batches."""

    images: ByteImages

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, rows: Tensor) -> Tensor:
        return self.images[rows].floats()


def scaled(images: Tensor, side: int) -> Tensor:
    """Convert bytes to floats in [0, 1], averaged down to ``side`` pixels."""
    return adaptive_avg_pool2d(images.float() / 255, side)
