"""Text for recurrent language models: words as numbers, in pieces read in order."""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from switch_ema.bench.data.splits import stream
from switch_ema.bench.data.texts import END, UNKNOWN


@dataclass
class Carry:
    """The state between two pieces of text; None at the beginning."""

    state: Any = None


class Pieces:
    """The text in pieces of a few words, each with the state before and after it.

    The loss of a piece reads the one and writes the other. The state therefore belongs
    to one pass over the text: it starts empty in each epoch, so training can be resumed
    between epochs, and an optimizer may ask for the loss of a piece twice.
    """

    def __init__(self, columns: Tensor, length: int) -> None:
        self._columns, self._length = columns, length

    def __len__(self) -> int:
        return -(-(len(self._columns) - 1) // self._length)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, Carry, Carry]]:
        before = Carry()
        words, following = self._columns[:-1], self._columns[1:]
        pieces = (torch.split(text, self._length) for text in (words, following))
        for piece, targets in zip(*pieces, strict=True):
            after = Carry()
            yield piece, targets, before, after
            before = after


def epoch_pieces(
    text: Tensor, batch: int, length: int, *, seed: int, epoch: int
) -> Pieces:
    """Cut the text into pieces, starting at another word in each epoch."""
    generator = stream(seed, f"start of epoch {epoch}")
    start = int(torch.randint(len(text), (), generator=generator))
    return Pieces(columns(text.roll(-start), batch), length)


def perplexity(
    read: Callable[[Tensor, Any], tuple[Tensor, Any]],
    pieces: Pieces,
    device: torch.device,
) -> float:
    """Measure a text from its beginning to its end.

    Args:
        read: Takes words and the state before them, returns logits and the state after.
        pieces: The text.
        device: Where the words are wanted.
    """
    state, total, count = None, 0.0, 0
    for words, following, *_ in pieces:
        logits, state = read(words.to(device), state)
        targets = following.to(device).flatten()
        total += cross_entropy(logits.flatten(0, 1), targets).item() * len(targets)
        count += len(targets)
    return math.exp(min(total / count, 700.0))


def columns(text: Tensor, count: int) -> Tensor:
    """Cut the text into ``count`` parts that are read side by side."""
    rows = len(text) // count
    return text[: rows * count].view(count, rows).t().contiguous()


def number_words(words: list[str], most: int, *, least: int = 2) -> dict[str, int]:
    """Number the words that occur at least ``least`` times, the frequent ones first."""
    special = [UNKNOWN, END]
    counts = Counter(word for word in words if word not in special)
    frequent = [word for word, count in counts.most_common(most) if count >= least]
    return {word: index for index, word in enumerate([*special, *frequent])}


def indices(words: list[str], known: dict[str, int]) -> Tensor:
    """Look the words up; unknown ones have the number 0."""
    return torch.tensor([known.get(word, 0) for word in words])


def unigram_perplexity(train: Tensor, test: Tensor, size: int) -> float:
    """Measure a model that knows only how often each word occurs in training.

    Every word of the vocabulary is counted once more, so that none is impossible.
    """
    counts = torch.bincount(train, minlength=size).double() + 1
    surprise = -(counts / counts.sum()).log()[test].mean().item()
    return math.exp(surprise)
