"""Splits and label noise, drawn from a task's seed."""

import hashlib
from typing import Any

import torch
from torch import Tensor

from switch_ema._checks import check_choice


def stream(seed: int, purpose: str) -> torch.Generator:
    """Return a random generator for one purpose, independent of all others.

    >>> torch.rand(1, generator=stream(0, "noise")) == torch.rand(
    ...     1, generator=stream(0, "noise")
    ... )
    tensor([True])
    """
    digest = hashlib.sha256(f"{purpose}/{seed}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))


def check_split(split: str) -> bool:
    """Return whether to evaluate on held-out training data."""
    return check_choice("split", split, ("test", "validation")) == "validation"


def hold_out(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Split the training examples: which stay, and which fifth is held out."""
    order = torch.randperm(count, generator=stream(seed, "hold out"))
    fifth = count // 5
    return order[fifth:], order[:fifth]


def choose_split(
    split: str,
    seed: int,
    train: tuple[Any, ...],
    test: tuple[Any, ...],
    *,
    clean: tuple[Any, ...] | None = None,
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return a task's training and evaluation data.

    Args:
        split: ``test`` evaluates on the test data; ``validation`` holds out a fifth of
            the training data and evaluates on that.
        seed: Seeds the choice of the fifth.
        train: Inputs, labels and any other data of the training examples; each must
            support indexing by a tensor of positions.
        test: The same for the test examples.
        clean: Held out instead of ``train`` if the training labels are noisy: clean
            labels measure what the test measures.

    >>> x = torch.arange(10)
    >>> train, held_out = choose_split("validation", 0, (x, 2 * x), (x, x))
    >>> len(train[0]), len(held_out[1])
    (8, 2)
    """
    if not check_split(split):
        return train, test
    stay, held = hold_out(len(train[0]), seed)
    source = train if clean is None else clean
    return tuple(part[stay] for part in train), tuple(part[held] for part in source)


def redraw_labels(labels: Tensor, share: float, classes: int, seed: int) -> Tensor:
    """Redraw a share of the labels, uniformly over all classes.

    The share is exact. About one in ``classes`` of the redrawn labels comes out
    unchanged, so slightly fewer than the share are wrong.
    """
    generator = stream(seed, "label noise")
    count = round(share * len(labels))
    chosen = torch.randperm(len(labels), generator=generator)[:count]
    redrawn = labels.clone()
    redrawn[chosen] = torch.randint(classes, (count,), generator=generator)
    return redrawn
