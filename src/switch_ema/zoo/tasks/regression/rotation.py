"""Rotation-angle regression with L1 loss, as in the paper."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import affine_grid, grid_sample, l1_loss, pad
from torch.optim import AdamW, Optimizer

from switch_ema._checks import check_choice, check_count
from switch_ema.bench.task import Batches, Loader, Metric, Recipe, Task
from switch_ema.zoo.data.images import ImageSet, load_images
from switch_ema.zoo.data.splits import choose_split, stream
from switch_ema.zoo.models import IMAGE_NETWORKS, STACKS, image_network
from switch_ema.zoo.tasks.metrics import predict

_RANGES = {"digits": (-45.0, 45.0), "rcf": (0.0, 360.0)}
"""Angles in degrees, by dataset."""
TESTED = 1000
"""Largest number of test images."""
HONEST = 0.8
"""Share of the coloured images whose colour agrees with the angle."""


class Rotation(Task):
    """Rotation angle of an image, in degrees: regression with L1 loss.

    ``digits`` are rotated by -45 to 45 degrees, which keeps the angle unambiguous.
    ``rcf`` follows RCF-MNIST (Yao et al., 2022), with CIFAR-10 photos as background:
    Fashion-MNIST is rotated by 0 to 360 degrees, and coloured from blue to red by its
    angle in 80% of the images, from red to blue in the others, here in training and
    test alike. As there, the network predicts the angle as one number and errors are
    plain differences: predicting 359 for an angle of 1 is an error of 358.

    Args:
        seed: random seed.
        split: evaluate on "test" or "validation" images.
        dataset: the images; rcf needs fashion_mnist and cifar10.
        network: the network.
        size: training images, at least 10.
        batch: images per step.
        download: whether torchvision may download the data.
    """

    datasets = tuple(_RANGES)
    networks = IMAGE_NETWORKS
    metrics = (
        Metric(name="MAE", higher_is_better=False, unit="°"),
        Metric(name="RMSE", higher_is_better=False, unit="°"),
    )
    recipe = Recipe(
        # 31 steps per epoch on digits: a switch keeps about half of its progress.
        epochs=30,
        methods={"ema": {"decay": 0.95}, "switch-ema": {"decay": 0.95}},
    )

    def __init__(
        self,
        seed: int,
        *,
        split: str = "test",
        dataset: str = "digits",
        network: str = "small-cnn",
        size: int = 1000,
        batch: int = 32,
        download: bool = False,
    ) -> None:
        super().__init__(seed)
        low, high = _RANGES[check_choice("dataset", dataset, tuple(_RANGES))]
        self.network = check_choice("network", network, IMAGE_NETWORKS)
        self.batch, self.degrees = check_count("batch", batch), high - low
        check_count("size", size, 10)
        named = "digits" if dataset == "digits" else "fashion_mnist"
        images = upright(load_images(named, seed, download=download), size, seed)
        # The target is the angle as a share of its range.
        y = torch.rand(len(images), generator=stream(seed, "angles"))
        x = turn(images, low + self.degrees * y)
        if dataset == "rcf":
            photos = load_images("cifar10", seed, download=download)
            red = _redness(y, seed)
            behind = photos_behind(photos, size, len(x), seed)
            x = over_photos(coloured(x, red), x, behind)
        deviation, mean = torch.std_mean(x[:size], dim=(0, 2, 3), keepdim=True)
        x = (x - mean) / deviation
        (self.x, self.y), (self.x_eval, self.y_eval) = choose_split(
            split, seed, (x[:size], y[:size]), (x[size:], y[size:])
        )

    @classmethod
    def seeds_at_once(cls, options: Mapping[str, Any]) -> int:
        """Return how many small networks to train at once, as measured."""
        if options.get("dataset", "digits") != "digits":
            return 1
        return STACKS.get(str(options.get("network", "small-cnn")), 1)

    def model(self) -> nn.Module:
        """Make the network with one output."""
        return image_network(self.network, self.x.shape[1], self.x.shape[-1], 1)

    def optimizer(self, model: nn.Module) -> Optimizer:
        """Make AdamW, as in the paper."""
        return AdamW(model.parameters(), lr=2e-3)

    def train_loader(self, epoch: int) -> Loader:
        """Shuffle the images; each keeps its angle."""
        data = (self.x, self.y)
        return Batches(data, self.batch, self.seed, epoch=epoch, drop_last=True)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the mean absolute error of the angles, as a share of their range."""
        x, y = batch
        return l1_loss(model(x).squeeze(1), y)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Measure MAE and RMSE in degrees."""
        found = predict(model, torch.split(self.x_eval, 500)).squeeze(1)
        error = (found - self.y_eval).double() * self.degrees
        return {
            "MAE": error.abs().mean().item(),
            "RMSE": error.square().mean().sqrt().item(),
        }


def turn(images: Tensor, degrees: Tensor) -> Tensor:
    """Rotate each image about its centre, anti-clockwise, by its own angle."""
    angle = degrees * (math.pi / 180)
    cos, sin, zero = angle.cos(), angle.sin(), torch.zeros_like(angle)
    rows = [torch.stack([cos, -sin, zero], 1), torch.stack([sin, cos, zero], 1)]
    grid = affine_grid(torch.stack(rows, 1), list(images.shape), align_corners=False)
    return grid_sample(images, grid, align_corners=False)


def upright(data: ImageSet, size: int, seed: int, *, tested: int = TESTED) -> Tensor:
    """Return the training images, then the test images, padded for rotation."""
    if size > len(data.x_train):
        raise ValueError(f"size must be at most {len(data.x_train)}, got {size}.")
    shuffle = stream(seed, "images")
    train = torch.randperm(len(data.x_train), generator=shuffle)[:size]
    test = torch.randperm(len(data.x_test), generator=shuffle)[:tested]
    images = torch.cat([data.x_train[train], data.x_test[test]])
    return pad(images.float() / 255, (2,) * 4)


def _redness(y: Tensor, seed: int) -> Tensor:
    """Return the redness of each image: its angle or, in a fifth of them, 1 minus it.

    Args:
        y: Angles as shares of their range.
        seed: Seeds the choice of the fifth.
    """
    honest = torch.rand(len(y), generator=stream(seed, "colours")) < HONEST
    return torch.where(honest, y, 1 - y)


def coloured(clothes: Tensor, red: Tensor) -> Tensor:
    """Colour the clothes between blue (0) and red (1)."""
    colours = torch.stack([red, torch.zeros_like(red), 1 - red], 1)
    return clothes * colours[:, :, None, None]


def photos_behind(photos: ImageSet, size: int, count: int, seed: int) -> Tensor:
    """Draw a photo for each image, as bytes; training images get training photos.

    Args:
        photos: The photos.
        size: Number of training images.
        count: Number of all images.
        seed: Seeds the choice.
    """
    generator = stream(seed, "photos")
    return torch.cat(
        [
            source[torch.randint(len(source), (drawn,), generator=generator)]
            for source, drawn in (
                (photos.x_train, size),
                (photos.x_test, count - size),
            )
        ]
    )


def over_photos(clothes: Tensor, opaque: Tensor, behind: Tensor) -> Tensor:
    """Put the clothes on photos."""
    return clothes + (1 - opaque) * behind.float() / 255
