"""Stacked trainings of a small perceptron, for benchmarks of averages.

All seeds of a run are one stacked model. Passive averages share its trajectory, so one
training measures all of them.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, affine_grid, grid_sample
from torch.optim import SGD, AdamW, Optimizer

from switch_ema.bench.stacking.modules import Stacked
from switch_ema.zoo.data.images import load_digit_images, load_images
from switch_ema.zoo.data.sources import need
from switch_ema.zoo.data.splits import redraw_labels, stream
from switch_ema.zoo.models import mlp

CLASSES = 10
_HIDDEN = 64
_SIDE = 14
"""Images of 28 by 28 pixels are averaged down to this size."""


@dataclass(frozen=True)
class Pool:
    """Examples that all seeds draw their training and test data from."""

    x: Tensor
    """Inputs: (count, ...), of which the first ``train`` may be trained on."""
    y: Tensor
    train: int | None
    """None: any example may be trained on, and the rest of a seed's draw is tested."""


@dataclass(frozen=True)
class Split:
    """Indices into a pool, one row per seed, and labels, of which some may be noisy."""

    train: Tensor
    labels: Tensor
    held_out: Tensor
    """Neither trained on nor tested."""
    held_out_labels: Tensor
    """As noisy as the training labels."""
    test: Tensor


@lru_cache(maxsize=1)
def load_pool(name: str) -> Pool:
    """Load all examples of a data set."""
    if name == "digits":
        return Pool(*load_digit_images(), None)
    if name == "mnist1d":
        data = need("mnist1d.data")
        settings = data.get_dataset_args()
        settings.num_samples, settings.seed, settings.train_split = 10_000, 1, 1.0
        made = data.make_dataset(settings)
        x = torch.tensor(made["x"], dtype=torch.float32)
        return Pool(x, torch.tensor(made["y"], dtype=torch.long), 8000)
    images = load_images(name, 0)
    x = torch.cat([images.x_train, images.x_test[:2000]])
    y = torch.cat([images.y_train, images.y_test[:2000]])
    small = adaptive_avg_pool2d(x.float() / 255, _SIDE)
    return Pool(small, y, len(images.y_train))


def split(
    pool: Pool, seeds: Sequence[int], size: int, noise: float, held_out: int = 300
) -> Split:
    """Draw each seed's training and held-out examples; redraw a share of the labels."""
    parts: list[list[Tensor]] = [[], [], [], [], []]
    for seed in seeds:
        order = torch.randperm(
            len(pool.y) if pool.train is None else pool.train,
            generator=stream(seed, "windows"),
        )
        own = order[: size + held_out]
        labels = redraw_labels(pool.y[own], noise, CLASSES, seed)
        rest = torch.arange(pool.train or 0, len(pool.y))
        test = order[size + held_out :] if pool.train is None else rest
        found = (own[:size], labels[:size], own[size:], labels[size:], test)
        for part, values in zip(parts, found, strict=True):
            part.append(values)
    return Split(*map(torch.stack, parts))


def batches(data: Split, seeds: Sequence[int], steps: int, batch: int) -> Tensor:
    """Return positions in the training data: (steps, seeds, batch), in epochs."""
    rows = []
    for seed in seeds:
        generator, size = stream(seed, "order"), data.train.shape[1]
        epochs = math.ceil(steps * batch / size)
        order = [torch.randperm(size, generator=generator) for _ in range(epochs)]
        rows.append(torch.cat(order)[: steps * batch].view(steps, batch))
    return torch.stack(rows, 1)


def make_model(pool: Pool, seeds: Sequence[int]) -> Stacked:
    """Stack one perceptron per seed."""
    networks = []
    features = pool.x[0].numel()
    for seed in seeds:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            networks.append(mlp(features, _HIDDEN, _HIDDEN, CLASSES))
    return Stacked(networks)


def make_optimizer(name: str, model: Stacked, rate: float) -> Optimizer:
    """Make SGD with momentum, or AdamW."""
    if name == "sgd":
        return SGD(model.parameters(), lr=rate, momentum=0.9)
    return AdamW(model.parameters(), lr=rate)


def rotated(images: Tensor, degrees: float) -> Tensor:
    """Rotate images: (..., 1, side, side)."""
    if not degrees:
        return images
    turn = math.radians(degrees)
    matrix = [[math.cos(turn), -math.sin(turn), 0], [math.sin(turn), math.cos(turn), 0]]
    flat = images.flatten(0, -4)
    grid = affine_grid(
        torch.tensor([matrix]).expand(len(flat), -1, -1),
        list(flat.shape),
        align_corners=False,
    )
    return grid_sample(flat, grid, align_corners=False).view_as(images)


def permuted(labels: Tensor) -> Tensor:
    """Give each class the label of the next."""
    return (labels + 1) % CLASSES


def train_step(model: Stacked, optimizer: Optimizer, x: Tensor, y: Tensor) -> None:
    """Take one step of all networks: x is (seeds, batch, ...), y (seeds, batch)."""
    logits = model.outputs(x.flatten(2))
    losses = torch.nn.functional.cross_entropy(
        logits.transpose(1, 2), y, reduction="none"
    )
    optimizer.zero_grad(set_to_none=True)
    losses.mean(1).sum().backward()  # the networks share nothing
    optimizer.step()


@torch.no_grad()
def correct(model: Stacked, x: Tensor, y: Tensor) -> Tensor:
    """Return which answers are right: (networks, examples), as numbers."""
    return (model.outputs(x.flatten(2)).argmax(2) == y).double()


def percent(right: Tensor) -> list[float]:
    """Return the accuracy of each network in percent."""
    return [100 * share for share in right.mean(1).tolist()]


Rates = Callable[[float], float]
"""Learning rate relative to the largest, from the share of the run, in [0, 1)."""


def cosine(share: float) -> float:
    """Fall to zero along a half cosine."""
    return (1 + math.cos(math.pi * share)) / 2


def cycles(count: float) -> Rates:
    """Restart the cosine, ``count`` cycles in all; the last may be cut short."""
    return lambda share: cosine(share * count % 1)


def stable_then_decay(share: float) -> float:
    """Warm up for 5%, stay until 80%, then fall linearly to zero."""
    return min(1.0, share / 0.05 + 0.01, (1 - share) / 0.2)


def stairs(share: float) -> float:
    """Divide by ten at half and at three quarters."""
    return 1.0 if share < 0.5 else 0.1 if share < 0.75 else 0.01
