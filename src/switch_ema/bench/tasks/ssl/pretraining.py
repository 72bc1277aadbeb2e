"""What all self-supervised tasks share: images, recipe, optimizer and evaluation."""

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate
from torch.optim import AdamW, Optimizer

from switch_ema.averaging.naming import unwrap
from switch_ema.averaging.validation import check_choice, check_count
from switch_ema.bench.data.images import ImageSet, load_images
from switch_ema.bench.data.splits import check_split, hold_out, stream
from switch_ema.bench.models.networks import SCALES
from switch_ema.bench.task import Metric, Recipe, Task
from switch_ema.bench.tasks.measure import ACCURACY, predict
from switch_ema.bench.tasks.ssl.encoder import create_encoder
from switch_ema.bench.tasks.ssl.protocols import (
    PROTOCOLS,
    Labelled,
    fine_tune,
    linear_probe,
    nearest_neighbours,
)
from switch_ema.bench.tasks.ssl.settings import PaperSettings, paper_optimizer
from switch_ema.bench.tasks.ssl.stl10 import load_stl10

DATASETS = ("digits", "mnist", "fashion_mnist", "cifar10", "cifar100", "stl10")
COLOURED = ("cifar10", "cifar100", "stl10")
"""What there is at the paper's scale."""
LIMITS = {"small": (2000, 1000), "paper": (None, 10_000)}
"""By scale: images to train on unless ``size`` is given, and images that are tested."""
PROBED = 5000
"""At most this many labelled images for a probe."""


class Pretraining(Task):
    """Train an encoder without labels, then see what a classifier makes of it.

    ``accuracy`` is that of the protocol: ``linear`` fits a linear classifier to the
    features of labelled training images, ``fine-tune`` trains a copy of the encoder
    with layer decay 0.65 (at small scale for a few epochs, as it is done after every
    epoch). ``knn`` lets the nearest training images vote. The labels serve the
    evaluation only.
    """

    metrics = (ACCURACY, Metric(name="knn", higher_is_better=True, unit="%"))
    networks: ClassVar[tuple[str, ...]]
    """The first is the default."""
    paper: ClassVar[PaperSettings]
    small_lr: ClassVar[float] = 2e-3

    @classmethod
    def recipe_for(cls, options: Mapping[str, Any]) -> Recipe:
        """Return the paper's settings at its scale."""
        if options.get("scale", "small") != "paper":
            return cls.recipe
        return Recipe(
            epochs=1000,
            schedule="cosine",
            warmup_epochs=cls.paper.warmup_epochs,
            clip=cls.paper.clip,
            methods=cls.paper.methods,
        )

    def __init__(
        self,
        seed: int,
        *,
        split: str = "test",
        dataset: str = "digits",
        network: str | None = None,
        scale: str = "small",
        size: int | None = None,
        image_size: int | None = None,
        batch: int | None = None,
        protocol: str = "linear",
        download: bool = False,
    ) -> None:
        super().__init__(seed)
        self.dataset = check_choice("dataset", dataset, DATASETS)
        self.scale = check_choice("scale", scale, SCALES)
        if scale == "paper":
            check_choice("dataset at scale 'paper'", dataset, COLOURED)
        self.network = check_choice(
            "network", network or self.networks[0], self.networks
        )
        self.protocol = check_choice("protocol", protocol, PROTOCOLS)
        usual = 64 if scale == "small" else self.paper.batch
        self.batch = check_count("batch", usual if batch is None else batch, 2)
        self._load(size, check_split(split), download)
        self.channels, native = self.x.shape[1], self.x.shape[-1]
        usual = native if scale == "small" else 224
        self.image_size = check_count("image_size", image_size or usual, 8)

    def _load(self, size: int | None, validation: bool, download: bool) -> None:
        if self.dataset == "stl10":
            data = load_stl10(download=download)
        else:
            data = load_images(self.dataset, self.seed, download=download)
        self.classes = data.classes
        data = _subset(data, size, LIMITS[self.scale], self.seed)
        self.mean, self.deviation = data.statistics()
        self.x, self.y = data.x_train, data.y_train
        self.x_eval, self.y_eval = data.x_test, data.y_test
        if validation:
            stay, held = hold_out(len(self.x), self.seed)
            held = held[self.y[held] >= 0]
            self.x_eval, self.y_eval = self.x[held], self.y[held]
            self.x, self.y = self.x[stay], self.y[stay]

    def encoder(self) -> nn.Module:
        """Make the encoder with fresh weights."""
        return create_encoder(
            self.network,
            scale=self.scale,
            channels=self.channels,
            image_size=self.image_size,
            pool=self.pool(),
        )

    def pool(self) -> str | None:
        """Say how a transformer's tokens become features: None is the network's way."""
        return None

    def optimizer(self, model: nn.Module) -> Optimizer:
        """Make the method's own optimizer, or AdamW at small scale."""
        if self.scale == "paper":
            return paper_optimizer(self.paper, model, self.batch)
        trained = [p for p in model.parameters() if p.requires_grad]
        return AdamW(trained, lr=self.small_lr, weight_decay=1e-2)

    def prepare(self, images: Tensor) -> Tensor:
        """Bring images in [0, 1] to mean 0 and deviation 1, and to their size."""
        if images.shape[-1] != self.image_size:
            size = [self.image_size] * 2
            images = interpolate(images, size, mode="bilinear", antialias=True)
        return (images * 255 - self.mean) / self.deviation

    def statistics(self) -> dict[str, list[float]]:
        """Return mean and deviation of images in [0, 1], as lightly wants them."""
        mean, deviation = self.mean / 255, self.deviation / 255
        return {"mean": mean.flatten().tolist(), "std": deviation.flatten().tolist()}

    @abstractmethod
    def encoder_of(self, model: nn.Module) -> nn.Module:
        """Return the part of the unwrapped model that is kept after pre-training."""

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Measure what the encoder's features are worth."""
        encoder = self.encoder_of(unwrap(model))
        shown = torch.nonzero(self.y >= 0).flatten()[:PROBED]
        y = self.y[shown]
        features = Labelled(
            predict(encoder, self._prepared(self.x[shown])),
            y,
            predict(encoder, self._prepared(self.x_eval)),
            self.y_eval,
            self.classes,
        )
        if self.protocol == "linear":
            accuracy = linear_probe(features)
        else:
            x, x_test = (
                torch.cat(list(self._prepared(part)))
                for part in (self.x[shown], self.x_eval)
            )
            images = Labelled(x, y, x_test, self.y_eval, self.classes)
            epochs = 3 if self.scale == "small" else 100
            accuracy = fine_tune(encoder, images, epochs=epochs, seed=self.seed)
        return {"accuracy": accuracy, "knn": nearest_neighbours(features)}

    def _prepared(self, images: Tensor) -> Iterable[Tensor]:
        return (self.prepare(part.float() / 255) for part in torch.split(images, 250))


def _subset(
    data: ImageSet, size: int | None, limits: tuple[int | None, int], seed: int
) -> ImageSet:
    have = len(data.x_train)
    usual, tested = limits
    count = min(usual or have, have) if size is None else check_count("size", size, 20)
    if count > have:
        raise ValueError(f"size must be at most {have}, got {count}.")
    generator = stream(seed, "subset")
    train = torch.randperm(have, generator=generator)[:count]
    test = torch.randperm(len(data.x_test), generator=generator)[:tested]
    return ImageSet(
        data.x_train[train], data.y_train[train], data.x_test[test], data.y_test[test]
    )
