"""Handwritten digits of 8 by 8 pixels, clean and with wrong labels."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, Optimizer

from switch_ema._checks import check_count, check_range
from switch_ema.bench.data.images import load_digit_images
from switch_ema.bench.data.splits import (
    check_split,
    hold_out,
    redraw_labels,
    stream,
)
from switch_ema.bench.errors import UsageError
from switch_ema.bench.models import mlp
from switch_ema.bench.task import Batches, Loader, Recipe, Task
from switch_ema.bench.tasks.measure import ACCURACY, NLL, classification, predict


class Digits(Task):
    """Handwritten digits of 8 by 8 pixels: 1,000 training images, right labels."""

    metrics = (ACCURACY, NLL)
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
        if check_split(split):
            # Held-out labels stay clean: they measure what the test measures.
            stay, held = hold_out(size, seed)
            self.x, self.y = x[stay], noisy[stay]
            self.x_eval, self.y_eval = x[held], clean[held]
        else:
            self.x, self.y = x[:size], noisy
            self.x_eval, self.y_eval = x[size:], y[size:]

    def model(self) -> nn.Module:
        """Make a perceptron with two hidden layers."""
        return mlp(64, 64, 64, 10)

    def optimizer(self, model: nn.Module) -> Optimizer:
        """Make SGD with a learning rate that is large for the end of training."""
        return SGD(model.parameters(), lr=0.05, momentum=0.9)

    def train_loader(self, epoch: int) -> Loader:
        """Shuffle the images."""
        return Batches((self.x, self.y), self.batch, self.seed, epoch=epoch)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the cross-entropy."""
        x, y = batch
        return cross_entropy(model(x), y)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Measure accuracy and likelihood."""
        return classification(*self.predictions(model))

    def predictions(self, model: nn.Module) -> tuple[Tensor, Tensor]:
        """Classify the images that were not trained on."""
        return predict(model, [self.x_eval]), self.y_eval


class NoisyDigits(Digits):
    """Handwritten digits, with 30% of the 1,000 training labels redrawn at random."""

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
