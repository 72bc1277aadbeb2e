"""Image classification, from 8 by 8 digits to CIFAR-100 with ResNet-18."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.optim import SGD, AdamW, Optimizer

from switch_ema._checks import check_choice, check_count, check_range
from switch_ema.bench.data.images import ImageSet, load_images
from switch_ema.bench.data.splits import choose_split, redraw_labels, stream
from switch_ema.bench.models import IMAGE_NETWORKS, image_network
from switch_ema.bench.task import Batches, Loader, Recipe
from switch_ema.bench.tasks.metrics import Classifier

TRAINING_IMAGES = {
    "digits": 1000,
    "mnist": 60_000,
    "fashion_mnist": 60_000,
    "cifar10": 50_000,
    "cifar100": 50_000,
}
DATASETS = tuple(TRAINING_IMAGES)


class Images(Classifier):
    """Image classification: digits, MNIST, Fashion-MNIST or CIFAR, with label noise."""

    recipe = Recipe(epochs=20)

    @classmethod
    def recipe_for(cls, options: Mapping[str, Any]) -> Recipe:
        """Let the average span two thirds of an epoch, whatever its length.

        With x = (1 - d) * steps = 1.5 a switch keeps about half of an epoch's progress.
        """
        dataset = options.get("dataset", "digits")
        images = options.get("size") or TRAINING_IMAGES.get(dataset, 1000)
        steps = max(images // options.get("batch", 32), 3)
        decay = {"decay": round(1 - 1.5 / steps, 5)}
        return replace(cls.recipe, methods={"ema": decay, "switch-ema": decay})

    def __init__(
        self,
        seed: int,
        *,
        split: str = "test",
        dataset: str = "digits",
        network: str = "small-cnn",
        noise: float = 0.0,
        size: int | None = None,
        test_size: int | None = None,
        batch: int = 32,
        augment: bool = False,
        download: bool = False,
    ) -> None:
        super().__init__(seed)
        self.dataset = check_choice("dataset", dataset, DATASETS)
        self.network = check_choice("network", network, IMAGE_NETWORKS)
        self.batch = check_count("batch", batch)
        self.augment = augment
        check_range("noise", noise, 0, 1)
        data = load_images(dataset, seed, download=download)
        self.classes = data.classes
        data = _subset(data, size, test_size, seed)
        self.mean, self.deviation = data.statistics()
        noisy = redraw_labels(data.y_train, noise, self.classes, seed)
        (self.x, self.y), (self.x_eval, self.y_eval) = choose_split(
            split,
            seed,
            train=(data.x_train, noisy),
            test=(data.x_test, data.y_test),
            clean=(data.x_train, data.y_train),
        )

    def model(self) -> nn.Module:
        """Make the network that was asked for."""
        _, channels, side, _ = self.x.shape
        return image_network(self.network, channels, side, self.classes)

    def optimizer(self, model: nn.Module) -> Optimizer:
        """Make SGD for ResNet-18 as usual on CIFAR, AdamW for the small networks."""
        if self.network == "resnet18":
            return SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
        return AdamW(model.parameters(), lr=2e-3)

    def train_loader(self, epoch: int) -> Loader:
        """Shuffle the images, and shift and mirror them if asked to."""
        return ImageBatches(self, epoch)

    def evaluation_batches(self) -> Iterable[Tensor]:
        """Return the images that were not trained on."""
        return (self.prepare(x) for x in torch.split(self.x_eval, 500))

    def prepare(self, images: Tensor) -> Tensor:
        """Turn bytes into numbers of mean 0 and deviation 1."""
        return (images.float() - self.mean) / self.deviation


class ImageBatches(Batches):
    """Batches that are ready for the network."""

    def __init__(self, task: Images, epoch: int) -> None:
        self._task = task
        data = (task.x, task.y)
        super().__init__(data, task.batch, task.seed, epoch=epoch, drop_last=True)

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        task = self._task
        for x, y in super().__iter__():
            if task.augment:
                x = shift(x, x.shape[-1] // 8)
                x = mirror(x) if task.dataset.startswith("cifar") else x
            yield task.prepare(x), y


def shift(images: Tensor, most: int) -> Tensor:
    """Move each image by up to ``most`` pixels; black comes in from outside.

    As mirroring, it draws from torch's global random numbers, which the training loop
    seeds before each epoch.
    """
    count, _, height, width = images.shape
    down, right = torch.randint(2 * most + 1, (2, count, 1))
    rows = (down + torch.arange(height))[:, None, :, None]
    columns = (right + torch.arange(width))[:, None, None, :]
    each = torch.arange(count)[:, None, None, None]
    channels = torch.arange(images.shape[1])[None, :, None, None]
    return pad(images, (most,) * 4)[each, channels, rows, columns]


def mirror(images: Tensor) -> Tensor:
    """Mirror each image, left to right, or not."""
    flipped = torch.rand(len(images)) < 0.5
    return torch.where(flipped[:, None, None, None], images.flip(3), images)


def _subset(
    data: ImageSet, size: int | None, test_size: int | None, seed: int
) -> ImageSet:
    """Keep a random part of the training and of the test images."""
    generator = stream(seed, "subset")
    train = _draw("size", size, len(data.y_train), generator)
    test = _draw("test_size", test_size, len(data.y_test), generator)
    return ImageSet(
        data.x_train[train], data.y_train[train], data.x_test[test], data.y_test[test]
    )


def _draw(name: str, size: int | None, have: int, generator: torch.Generator) -> Tensor:
    size = have if size is None else check_count(name, size, 10)
    if size > have:
        raise ValueError(f"{name} must be at most {have}, got {size}.")
    return torch.randperm(have, generator=generator)[:size]
