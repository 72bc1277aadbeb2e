"""Image classification, from 8 by 8 digits to CIFAR-100 with ResNet-18."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from switch_ema._checks import check_choice, check_count, check_range
from switch_ema.bench.task import Loader, Recipe
from switch_ema.zoo.data.images import load_images
from switch_ema.zoo.data.selection import split_and_redraw, subset
from switch_ema.zoo.data.vision import TRAINING_IMAGES, in_memory
from switch_ema.zoo.models import IMAGE_NETWORKS, STACKS, image_network
from switch_ema.zoo.procedures import UNCHANGED, Augmentation
from switch_ema.zoo.tasks.image_batches import EvaluationImages, ImageLoader
from switch_ema.zoo.tasks.metrics import Classifier

DATASETS = ("digits", "mnist", "fashion_mnist", "cifar10", "cifar100")
_AUGMENTED = Augmentation(crop="shifted", flip=True)


class Images(Classifier):
    """Image classification with label noise: digits, MNIST, Fashion-MNIST or CIFAR.

    Args:
        seed: random seed.
        split: evaluate on "test" or "validation" images.
        dataset: the images; digits come with scikit-learn.
        network: the network; resnet18 is trained by SGD, the others by AdamW.
        noise: share of the training labels to redraw at random, in [0, 1).
        size: training images; None: all of them.
        test_size: test images; None: all of them.
        batch: images per step.
        augment: whether to shift and flip the training images.
        download: whether torchvision may download the data.
    """

    datasets = DATASETS
    networks = IMAGE_NETWORKS
    recipe = Recipe(epochs=20)

    @classmethod
    def recipe_for(cls, options: Mapping[str, Any]) -> Recipe:
        """Choose the decay so that the average spans two thirds of an epoch.

        With x = (1 - d) * steps = 1.5 a switch keeps about half of an epoch's progress.
        """
        dataset = options.get("dataset", "digits")
        images = options.get("size") or TRAINING_IMAGES.get(dataset, 1000)
        steps = max(images // options.get("batch", 32), 3)
        decay = {"decay": round(1 - 1.5 / steps, 5)}
        return replace(cls.recipe, methods={"ema": decay, "switch-ema": decay})

    @classmethod
    def seeds_at_once(cls, options: Mapping[str, Any]) -> int:
        """Return how many small networks to train at once, as measured."""
        if options.get("dataset", "digits") != "digits":
            return 1
        return STACKS.get(str(options.get("network", "small-cnn")), 1)

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
        self.augmentation = _AUGMENTED if augment else UNCHANGED
        check_range("noise", noise, 0, 1)
        whole = load_images(dataset, seed, download=download)
        part = subset(whole, size, test_size, seed)
        data = in_memory(dataset, part, classes=whole.classes)
        self.data = split_and_redraw(data, noise, seed, split=split)
        self.x, self.y = self.data.x_train, self.data.y_train
        self.x_eval, self.y_eval = self.data.x_test, self.data.y_test
        self.channels, self.side = part.x_train.shape[1:3]

    def model(self) -> nn.Module:
        """Make the chosen network."""
        return image_network(self.network, self.channels, self.side, self.data.classes)

    def optimizer(self, model: nn.Module) -> Optimizer:
        """Make SGD for ResNet-18, as usual on CIFAR; AdamW for the small networks."""
        if self.network == "resnet18":
            return SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
        return AdamW(model.parameters(), lr=2e-3)

    def train_loader(self, epoch: int) -> Loader:
        """Shuffle the images; shift and flip them if ``augment`` is set."""
        return self._training_images.epoch(epoch)

    @cached_property
    def _training_images(self) -> ImageLoader:
        return ImageLoader(
            self.data,
            self.augmentation,
            resolution=self.side,
            batch=self.batch,
            seed=self.seed,
        )

    def evaluation_batches(self) -> Iterable[Tensor]:
        """Return the evaluation images."""
        return EvaluationImages(
            self.data, self.augmentation, resolution=self.side, batch=500
        )
