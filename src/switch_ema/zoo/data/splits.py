"""What a task draws from its seed: how its data is split, which labels are noisy."""

import hashlib
from typing import Any

import torch
from torch import Tensor

from switch_ema._checks import check_choice


def stream(seed: int, purpose: str) -> torch.Generator:
    """Make the random numbers of one purpose, unrelated to those of any other.

    >>> torch.rand(1, generator=stream(0, "noise")) == torch.rand(
    ...     1, generator=stream(0, "noise")
    ... )
    tensor([True])
    """
    digest = hashlib.sha256(f"{purpose}/{seed}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))


def check_split(split: str) -> bool:
    """Return whether evaluation is on held-out training data."""
    return check_choice("split", split, ("test", "validation")) == "validation"


def hold_out(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Draw which training examples stay, and which fifth of them is held out."""
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
    """Return what a task trains on and what it evaluates on.

    Args:
        split: ``test`` evaluates on the test data. ``validation`` holds a fifth of the
            training data out, and evaluates on that.
        seed: Draws the fifth.
        train: Inputs, labels and whatever else belongs to the training examples; each
            can be indexed by a tensor of positions.
        test: The same for the test examples.
        clean: What is held out instead of ``train``, where the training labels are
            noisy: clean labels measure what the test measures.

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
    """Draw a share of the labels anew, uniformly over all classes.

    The share is exact. About one in ``classes`` of the redrawn labels is drawn as it
    was, so a little less than the share is wrong.
    """
    generator = stream(seed, "label noise")
    count = round(share * len(labels))
    chosen = torch.randperm(len(labels), generator=generator)[:count]
    redrawn = labels.clone()
    redrawn[chosen] = torch.randint(classes, (count,), generator=generator)
    return redrawn
