"""Text for recurrent language models, in pieces read in order."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from switch_ema.bench.loaders import CPU, WHOLE, BatchPart
from switch_ema.zoo.data.splits import stream


@dataclass
class _Carry:
    """The state between two pieces of text; None at the start."""

    state: Any = None


class Pieces:
    """Pieces of a few words, each with the state before and after it.

    The loss of a piece reads the state before and writes the one after. The state
    belongs to one pass over the text: it starts empty in each epoch, so training can
    resume between epochs, and an optimizer may evaluate the loss of a piece twice.

    Workers divide the columns, and each keeps the state of its own.

    Args:
        columns: The text, cut into columns that are read in parallel.
        length: Words per piece.
    """

    def __init__(self, columns: Tensor, length: int) -> None:
        self._columns, self._length = columns, length

    def __len__(self) -> int:
        return -(-(len(self._columns) - 1) // self._length)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, _Carry, _Carry]]:
        return self.batches()

    def batches(
        self, *, start: int = 0, part: BatchPart = WHOLE, device: torch.device = CPU
    ) -> Iterator[tuple[Tensor, Tensor, _Carry, _Carry]]:
        """Yield the pieces from ``start`` on, beginning with an empty state."""
        own = self._columns[:, part.of(self.examples(0))].to(device)
        pieces = (torch.split(text, self._length) for text in (own[:-1], own[1:]))
        before = _Carry()
        for piece, targets in islice(zip(*pieces, strict=True), start, None):
            after = _Carry()
            yield piece, targets, before, after
            before = after

    def examples(self, batch: int) -> int:
        """Return the number of columns."""
        return self._columns.shape[1]


def epoch_pieces(
    text: Tensor, batch: int, length: int, *, seed: int, epoch: int
) -> Pieces:
    """Cut the text into pieces, with a different offset in each epoch."""
    generator = stream(seed, f"start of epoch {epoch}")
    start = int(torch.randint(len(text), (), generator=generator))
    return Pieces(columns(text.roll(-start), batch), length)


def readings(
    read: Callable[[Tensor, Any], tuple[Tensor, Any]],
    pieces: Pieces,
    device: torch.device,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Read a text in order; yield the logits of the next words and the words.

    Args:
        read: Takes words and the state before them, returns logits and the state after.
        pieces: The text.
        device: Device to move the words to.
    """
    state = None
    for words, following, *_ in pieces:
        logits, state = read(words.to(device), state)
        yield logits, following


def columns(text: Tensor, count: int) -> Tensor:
    """Cut the text into ``count`` parts to read in parallel."""
    rows = len(text) // count
    return text[: rows * count].view(count, rows).t().contiguous()
