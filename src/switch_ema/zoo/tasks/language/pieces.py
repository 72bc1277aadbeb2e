"""Text for recurrent language models, in pieces read in order."""

from collections import deque
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
    belongs to one pass over the text: it starts empty in each epoch, and an optimizer
    may evaluate the loss of a piece twice. A training that resumes within an epoch
    loads it with :meth:`load_state_dict`.

    Workers divide the columns, and each keeps the state of its own.

    Args:
        columns: The text, cut into columns that are read in parallel.
        length: Words per piece.
    """

    def __init__(self, columns: Tensor, length: int) -> None:
        self._columns, self._length = columns, length
        self._loaded: Any = None
        # Pieces are drawn ahead of the training, so the last one may be unread.
        self._recent: deque[_Carry] = deque(maxlen=4)

    def __len__(self) -> int:
        return -(-(len(self._columns) - 1) // self._length)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, _Carry, _Carry]]:
        return self.batches()

    def batches(
        self, *, start: int = 0, part: BatchPart = WHOLE, device: torch.device = CPU
    ) -> Iterator[tuple[Tensor, Tensor, _Carry, _Carry]]:
        """Yield the pieces from ``start`` on, beginning with the state loaded last."""
        own = self._columns[:, part.of(self.examples(0))].to(device)
        pieces = (torch.split(text, self._length) for text in (own[:-1], own[1:]))
        before, self._loaded = _Carry(self._loaded), None
        for piece, targets in islice(zip(*pieces, strict=True), start, None):
            after = _Carry()
            self._recent.append(after)
            yield piece, targets, before, after
            before = after

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the last piece that was read."""
        read = (carry.state for carry in reversed(self._recent))
        return {"carried": next((s for s in read if s is not None), None)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Begin the next pass with a state."""
        self._loaded = state["carried"]

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
