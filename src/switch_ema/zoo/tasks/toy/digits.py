"""Handwritten digits of 8 by 8 pixels, with clean or noisy labels."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from switch_ema._checks import check_count, check_range
from switch_ema.bench.errors import UsageError
from switch_ema.bench.task import Batches, Loader, Recipe
from switch_ema.zoo.data.images import load_digit_images
from switch_ema.zoo.data.splits import choose_split, redraw_labels, stream
from switch_ema.zoo.models import mlp
from switch_ema.zoo.tasks.metrics import Classifier


class Digits(Classifier):
    """Handwritten digits with clean labels; 1,000 training images by default.

    Args:
        seed: random seed.
        split: evaluate on "test" or "validation" images.
        noise: share of the training labels to redraw at random, in [0, 1).
        size: training images, from 10 to 1,796; the others are test images.
        batch: images per step.
    """

    recipe = Recipe(
        epochs=30, methods={"ema": {"decay": 0.99}, "switch-ema": {"decay": 0.99}}
    )

    def __init__(
        self,
        seed: int,
        *,
        split: str = "test",
        noise: float = 0.0,
        size: int = 1000,
        batch: int = 16,
    ) -> None:
        super().__init__(seed)
        self.batch = check_count("batch", batch)
        images, labels = load_digit_images()
        if check_count("size", size, 10) >= len(labels):
            raise UsageError(
                f"size must be below {len(labels)}, the number of images, got {size}."
            )
        order = torch.randperm(len(labels), generator=stream(seed, "digits"))
        x, y = images.flatten(1)[order], labels[order]
        clean = y[:size]
        noisy = redraw_labels(clean, check_range("noise", noise, 0, 1), 10, seed)
        (self.x, self.y), (self.x_eval, self.y_eval) = choose_split(
            split,
            seed,
            train=(x[:size], noisy),
            test=(x[size:], y[size:]),
            clean=(x[:size], clean),
        )

    @classmethod
    def seeds_at_once(cls, options: Mapping[str, Any]) -> int:
        """Train many at once: steps of such a small network are mostly overhead."""
        return 32

    def model(self) -> nn.Module:
        """Make a perceptron with two hidden layers."""
        return mlp(64, 64, 64, 10)

    def optimizer(self, model: nn.Module) -> Optimizer:
        """Make SGD with a learning rate that is large for the end of training."""
        return SGD(model.parameters(), lr=0.05, momentum=0.9)

    def train_loader(self, epoch: int) -> Loader:
        """Shuffle the images."""
        return Batches((self.x, self.y), self.batch, self.seed, epoch=epoch)

    def evaluation_batches(self) -> Iterable[Tensor]:
        """Return all evaluation images in one batch."""
        return [self.x_eval]


class NoisyDigits(Digits):
    """Handwritten digits with noisy labels; 30% of 1,000 redrawn by default."""

    def __init__(
        self,
        seed: int,
        *,
        split: str = "test",
        noise: float = 0.3,
        size: int = 1000,
        batch: int = 16,
    ) -> None:
        super().__init__(seed, split=split, noise=noise, size=size, batch=batch)
