"""Evaluation of encoders: linear probe, nearest neighbours, fine-tuning."""

import copy
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from accelerate.utils import set_seed
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize
from torch.nn.parallel import DistributedDataParallel

from switch_ema.bench.broken_files import BrokenFiles
from switch_ema.bench.loaders import feed, is_placed
from switch_ema.bench.optimizers.catalog import create_optimizer
from switch_ema.bench.optimizers.schedules import create_schedule
from switch_ema.bench.sharding import Shard
from switch_ema.bench.spec import Spec
from switch_ema.bench.task import Batches, Loader
from switch_ema.zoo.data.vision import VisionSet
from switch_ema.zoo.procedures import classification_loss
from switch_ema.zoo.procedures.imagenet import deit
from switch_ema.zoo.tasks.image_batches import EvaluationImages, ImageLoader
from switch_ema.zoo.tasks.metrics import percent_correct, predict

PROTOCOLS = ("linear", "fine-tune")
AT_ONCE = 2**25
"""Values of features that are converted to double precision at once."""
LAYER_DECAY = 0.65
_LR = 2e-3
"""Learning rate of the last layer at the batch size of ``PROCEDURE``; it is
proportional to the batch size."""
PROCEDURE = replace(deit(), repeats=1, clip=None)
"""Augmentation, blending, smoothing and warm-up of MAE's fine-tuning."""

ALONE = Shard()
Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Labelled:
    """Features or images with labels, for training and testing."""

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor
    classes: int

    def first(self, count: int, tested: int) -> "Labelled":
        """Keep the first ``count`` training and ``tested`` test examples."""
        return Labelled(
            self.x[:count],
            self.y[:count],
            self.x_test[:tested],
            self.y_test[:tested],
            self.classes,
        )

    def accuracy(self, predicted: Tensor) -> float:
        """Return the accuracy of predicted classes in percent."""
        return percent_correct(predicted, self.y_test)


class LinearProbe:
    """Classifies by ridge regression on one-hot targets, which has a closed form.

    Features are standardised first (mean 0, standard deviation 1). The literature fits
    a softmax regression by SGD instead; ridge regression has no hyperparameters to
    tune. It needs sums over the training examples only, so their features need not be
    in memory at once: those of ImageNet would take 10 GB.

    Args:
        width: Number of features.
        classes: Number of classes.
        ridge: Penalty per example.
    """

    def __init__(self, width: int, classes: int, *, ridge: float = 1e-3) -> None:
        self._ridge = ridge
        self._counts = torch.zeros(classes, dtype=torch.double)
        self._sums = torch.zeros(classes, width, dtype=torch.double)
        """Sums of the features of each class."""
        self._gram = torch.zeros(width, width, dtype=torch.double)
        """Sums of the products of two features."""

    def add(self, x: Tensor, y: Tensor) -> None:
        """Add training examples."""
        x = x.double()
        self._gram.addmm_(x.T, x)
        self._sums.index_add_(0, y, x)
        self._counts += y.bincount(minlength=len(self._counts))

    def join(self, shard: Shard) -> None:
        """Add up the examples of all workers."""
        for name in ("_counts", "_sums", "_gram"):
            setattr(self, name, shard.sum(getattr(self, name)))

    def predict(self, x: Tensor) -> Tensor:
        """Return the classes of test examples."""
        count, width = self._counts.sum(), len(self._gram)
        mean, centre = self._sums.sum(0) / count, self._counts / count
        gram = self._gram - count * mean * mean[:, None]
        deviation = (gram.diagonal().clamp(min=0) / (count - 1)).sqrt()
        # Constant features, as after a collapse, would divide by zero. Rounding leaves
        # them a deviation of some 1e-8 of their size.
        is_constant = deviation <= 1e-8 + 1e-6 * mean.abs()
        scale = torch.where(is_constant, 0.0, 1 / deviation)
        gram = gram * scale * scale[:, None]
        sums = (self._sums - self._counts[:, None] * mean) * scale
        penalty = self._ridge * count * torch.eye(width, dtype=torch.double)
        weights = torch.linalg.solve(gram + penalty, sums.T)
        parts = torch.split(x, max(AT_ONCE // width, 1))
        found = [
            ((part.double() - mean) * scale @ weights + centre).argmax(1)
            for part in parts
        ]
        return torch.cat(found)


def nearest_neighbours(
    data: Labelled, *, k: int = 20, temperature: float = 0.1
) -> float:
    """Classify by the k nearest examples, weighted by ``exp(cosine / temperature)``."""
    k = min(k, len(data.x))
    similarity = normalize(data.x_test, dim=1) @ normalize(data.x, dim=1).T
    nearest, index = similarity.topk(k, dim=1)
    votes = torch.zeros(len(data.x_test), data.classes)
    votes.scatter_add_(1, data.y[index], ((nearest - 1) / temperature).exp())
    return data.accuracy(votes.argmax(1))


def fine_tune(
    encoder: nn.Module,
    data: Labelled,
    *,
    epochs: int,
    seed: int,
    batch: int = 64,
    lr: float = _LR,
) -> float:
    """Train a copy of the encoder with a new classifier on images in memory.

    Uses AdamW with a layer-wise rate decay of 0.65 from the output down. Leaves the
    encoder and the caller's random state unchanged.
    """

    def batches(epoch: int) -> Loader:
        return Batches((data.x, data.y), batch, seed, epoch=epoch)

    with _own_random_numbers(seed):
        model = copy.deepcopy(encoder).requires_grad_(True)
        _add_classifier(model, data.classes)
        _train(model, batches, cross_entropy, epochs=epochs, lr=lr)
        outputs = predict(model, torch.split(data.x_test, 256))
    return data.accuracy(outputs.argmax(1))


def fine_tune_by_procedure(
    network: nn.Module,
    data: VisionSet,
    *,
    epochs: int,
    resolution: int,
    batch: int,
    seed: int,
    workers: int,
    broken: BrokenFiles | None = None,
    lr: float | None = None,
    shard: Shard = ALONE,
) -> float:
    """Train the encoder itself on augmented images, which may be in files.

    Layer-wise rates as above, with a cosine after warm-up; the default ``lr`` is
    proportional to the batch size. Leaves the caller's random state unchanged. Workers
    divide the batches; batch norm, if there is any, sees the parts.
    """
    procedure = replace(PROCEDURE, batch_size=batch)
    warmup = min(procedure.warmup_epochs, epochs / 4)

    read: dict[str, Any] = {
        "resolution": resolution,
        "workers": workers,
        "broken": broken,
    }
    even = batch - batch % 2  # Mixup blends in pairs
    images = ImageLoader(data, procedure, batch=even, seed=seed, **read)

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return classification_loss(outputs, targets, procedure)

    with _own_random_numbers(seed):
        _add_classifier(network, data.classes)
        lr = lr or _LR * batch / PROCEDURE.batch_size
        if shard.ranks > 1:  # dropped layers differ between workers
            set_seed(seed + shard.rank)
        _train(
            network,
            images.epoch,
            loss,
            epochs=epochs,
            lr=lr,
            warmup=warmup,
            shard=shard,
        )
        shown = EvaluationImages(data, procedure, batch=250 * shard.ranks, **read)
        outputs, positions = shown.predict(network, shard)
    return percent_correct(outputs.argmax(1), data.y_test[positions])


def _add_classifier(model: Any, classes: int) -> None:
    device = next(model.parameters()).device
    model.reset_classifier(classes)
    model.to(device)


@torch.enable_grad()
def _train(
    model: nn.Module,
    batches: Callable[[int], Loader],
    loss: Loss,
    *,
    epochs: int,
    lr: float,
    warmup: float | None = None,
    shard: Shard = ALONE,
) -> None:
    """Train at a constant rate, or with a cosine after ``warmup`` epochs."""
    device = next(model.parameters()).device
    divided = model if shard.ranks == 1 else DistributedDataParallel(model)
    spec = Spec("adamw", {"lr": lr, "weight_decay": 0.05})
    optimizer = create_optimizer(spec, model, layer_decay=LAYER_DECAY)
    steps = len(batches(0))
    schedule = create_schedule(
        "constant" if warmup is None else "cosine",
        optimizer,
        total_steps=epochs * steps,
        warmup_steps=round((warmup or 0) * steps),
    )
    model.train()
    for epoch in range(epochs):
        loader = batches(epoch)
        for index, (x, y) in enumerate(feed(loader, device, part=shard)):
            optimizer.zero_grad()
            weight = 1.0
            if is_placed(loader):  # DDP divides by the number of workers
                weight = shard.ranks * len(x) / loader.examples(index)
            torch.autograd.backward(loss(divided(x), y) * weight)
            optimizer.step()
            schedule.step()
    model.eval()


@contextmanager
def _own_random_numbers(seed: int) -> Iterator[None]:
    """Seed torch, NumPy and Python; augmentation uses all three."""
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng():
        set_seed(seed)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)
