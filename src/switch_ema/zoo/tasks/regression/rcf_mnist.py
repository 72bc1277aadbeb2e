"""RCF-MNIST, rotation angles of coloured clothes: the paper's Table 10."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from switch_ema._checks import check_choice, check_count
from switch_ema.bench.task import Batches, Loader, Recipe
from switch_ema.zoo.data.images import load_images
from switch_ema.zoo.data.splits import choose_split, stream
from switch_ema.zoo.decays import DECAYS
from switch_ema.zoo.tasks.regression.rotation import (
    coloured,
    over_photos,
    photos_behind,
    turn,
    upright,
)
from switch_ema.zoo.tasks.regression.scalar import (
    SCHEDULE,
    ScalarRegression,
    error_metrics,
    errors,
    for_network,
)

_FULL = 360.0
_SMALL_SIDE = 16
HONEST = 0.8
"""Share of the images whose colour reveals the angle."""
_AT_ONCE = 5000
"""Images that are drawn at once."""


@dataclass(frozen=True)
class _Recipes:
    """Differences between published versions of the data."""

    coloured: bool = True
    """Whether the colour reveals the angle in four of five training images."""
    reversed: bool = False
    """Whether it shows 360 degrees minus the angle in four of five test images."""
    angles: int | None = None
    """Number of distinct angles; None for any angle."""
    photos: bool = False
    """Whether the background is CIFAR-10 photos instead of black."""


_VERSIONS = {
    "paper": _Recipes(photos=True),
    "c-mixup": _Recipes(reversed=True),
    "angles-60": _Recipes(coloured=False, angles=60),
}
SMALL = Recipe(
    # 187 steps per epoch: a switch keeps two thirds of an epoch's progress.
    epochs=12,
    schedule="cosine",
    evaluate_every=3,
    methods={"ema": {"decay": 0.984}, "switch-ema": {"decay": 0.984}},
)
PAPER = Recipe(
    epochs=800,
    schedule=SCHEDULE,
    methods=DECAYS["rcf-mnist", "regression"].options(),
)


class RCFMNIST(ScalarRegression):
    """Rotation angle, in degrees, of coloured Fashion-MNIST images (RCF-MNIST).

    Clothes are rotated by 0 to 360 degrees. The network predicts the angle as one
    number, and errors are plain differences, as in the publications: predicting 359 for
    an angle of 1 is an error of 358. Three versions of the data exist:

    - ``paper`` follows the text of the Switch EMA paper, with CIFAR-10 photos as
      background. The clothes' colour goes from blue to red with the angle in 80% of the
      images and from red to blue in the others, in training and test alike.
    - ``c-mixup`` follows the script of C-Mixup (Yao et al., 2022), which introduced the
      data: black background, and reversed test colours, so a model that relies on the
      colour is wrong in 80% of the test images.
    - ``angles-60`` follows a later loader: 60 angles, no colour, black background.

    Args:
        seed: Random seed.
        split: Evaluate on ``test`` images or on a held-out fifth of the training images
            (``validation``).
        version: ``paper``, ``c-mixup`` or ``angles-60``.
        network: ``resnet18``, ``resnet50`` or ``convnext-t``.
        scale: ``paper`` for the full-size network on all images at 32 by 32 pixels,
            ``small`` for a small version on 12,000 images at half that size.
        dataset: Images to rotate: ``fashion_mnist``, ``mnist`` or ``digits``.
        size: Training images, instead of the scale's.
        test_size: Test images, likewise; at the small scale 1,000.
        batch: Images per step.
        download: Whether torchvision may download the data.
    """

    metrics = error_metrics("°")
    small_lr = 1e-2  # with 3e-3 ResNet-50 learns nothing but the colour

    @classmethod
    def recipe_for(cls, options: Mapping[str, Any]) -> Recipe:
        """Return the recipe of the scale."""
        return for_network(PAPER if options.get("scale") == "paper" else SMALL, options)

    def __init__(
        self,
        seed: int,
        *,
        split: str = "test",
        version: str = "paper",
        network: str = "resnet18",
        scale: str = "small",
        dataset: str = "fashion_mnist",
        size: int | None = None,
        test_size: int | None = None,
        batch: int = 64,
        download: bool = False,
    ) -> None:
        super().__init__(seed)
        self.version = _VERSIONS[check_choice("version", version, tuple(_VERSIONS))]
        check_choice("dataset", dataset, ("fashion_mnist", "mnist", "digits"))
        self.batch = check_count("batch", batch)
        images = load_images(dataset, seed, download=download)
        size, tested = (
            min(given or most, have)
            for given, most, have in (
                (size, 12_000 if scale == "small" else 60_000, len(images.x_train)),
                (test_size, 1000 if scale == "small" else 10_000, len(images.x_test)),
            )
        )
        clothes = upright(images, check_count("size", size, 10), seed, tested=tested)
        y = self._angles(len(clothes))
        red = self._redness(y, size) if self.version.coloured else y
        behind = None
        if self.version.photos:
            photos = load_images("cifar10", seed, download=download)
            behind = photos_behind(photos, size, len(clothes), seed)
        largest = _SMALL_SIDE if scale == "small" else clothes.shape[-1]
        x = self._draw(clothes, y, red, behind, min(clothes.shape[-1], largest))
        deviation, mean = torch.std_mean(x[:size], dim=(0, 2, 3), keepdim=True)
        # Without photos the green channel is all zero.
        x.sub_(mean).div_(deviation.clamp(min=1e-3))
        y = _FULL * y
        (self.x, self.y, _), (self.x_eval, self.y_eval, self.red_eval) = choose_split(
            split,
            seed,
            (x[:size], y[:size], red[:size]),
            (x[size:], y[size:], red[size:]),
        )
        self.choose_network(network, scale, x.shape[-1])

    def _draw(
        self, clothes: Tensor, y: Tensor, red: Tensor, behind: Tensor | None, side: int
    ) -> Tensor:
        """Turn the clothes, colour them and put them on photos.

        Part by part: with all at once, intermediate results would take gigabytes.
        """
        x = torch.empty(len(clothes), 3, side, side)
        for begin in range(0, len(x), _AT_ONCE):
            part = slice(begin, begin + _AT_ONCE)
            turned = turn(clothes[part], _FULL * y[part])
            drawn = turned.expand(-1, 3, -1, -1)
            if self.version.coloured:
                drawn = coloured(drawn, red[part])
            if behind is not None:
                drawn = over_photos(drawn, turned, behind[part])
            if drawn.shape[-1] > side:
                drawn = avg_pool2d(drawn, drawn.shape[-1] // side)
            x[part] = drawn
        return x

    def _angles(self, count: int) -> Tensor:
        """Draw angles, as shares of a full turn."""
        angles = torch.rand(count, generator=stream(self.seed, "angles"))
        steps = self.version.angles
        return angles if steps is None else (angles * steps).floor() / steps

    def _redness(self, y: Tensor, size: int) -> Tensor:
        """Return the redness of each image: its angle, or 1 minus it in a fifth.

        The fifth is exact. Versions with reversed test colours swap the two there.
        """
        generator = stream(self.seed, "colours")
        parts = []
        for angles, reverse in ((y[:size], False), (y[size:], self.version.reversed)):
            order = torch.randperm(len(angles), generator=generator)
            honest = order < round(HONEST * len(angles))
            parts.append(torch.where(honest ^ reverse, angles, 1 - angles))
        return torch.cat(parts)

    def train_loader(self, epoch: int) -> Loader:
        """Shuffle the images; each keeps its angle."""
        data = (self.x, self.y)
        return Batches(data, self.batch, self.seed, epoch=epoch, drop_last=True)

    def evaluation_batches(self) -> Sequence[Tensor]:
        """Return the evaluation images."""
        return torch.split(self.x_eval, 250)

    def trivial(self) -> dict[str, dict[str, float]]:
        """Measure the best constant, and the best prediction from the colour alone.

        The latter knows whether the colours are reversed, so it is wrong in only a
        fifth of the images.
        """
        found = super().trivial()
        if self.version.coloured:
            readings = (_FULL * self.red_eval, _FULL * (1 - self.red_eval))
            measured = [errors(reading, self.y_eval) for reading in readings]
            best = min(measured, key=lambda values: values["MAE"])
            found["ideal reader of the colour"] = best
        return found
