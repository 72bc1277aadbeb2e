"""Fréchet distances between the features of generated and real images."""

import math
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, cross_entropy

from switch_ema.bench.task import Batches, Shard
from switch_ema.zoo.data import sources
from switch_ema.zoo.data.byte_images import ByteImages, scaled
from switch_ema.zoo.data.images import load_images
from switch_ema.zoo.models.basic import small_cnn

_COMBINED = 5000
"""Maximum number of images whose mean and covariance a Gaussian has."""
_GENERATED = (
    *("fake_features_sum", "fake_features_cov_sum"),
    "fake_features_num_samples",
)
"""Sums over generated images, as torchmetrics names them."""
_CLASSIFIED = 5000
"""Maximum number of images to train the classifier on."""


class FrechetDistance:
    """The Fréchet distance between the features of real and of generated images.

    With means ``m`` and covariances ``C`` of the features of real (r) and generated
    (g) images (Heusel et al., 2017)::

        |m_r - m_g|^2 + trace(C_r + C_g - 2 (C_r C_g)^(1/2))

    It shrinks as the number of images grows, so only compare distances from equally
    many images. torchmetrics computes it.

    Args:
        real: Images in [0, 1], part by part: count x channels x height x width.
        features: A module that maps such images to vectors, with an attribute
            ``num_features``; or a path to the weights of FID's Inception network, as
            published by torch-fidelity.
    """

    def __init__(self, real: Iterable[Tensor], features: nn.Module | str) -> None:
        image = sources.need("torchmetrics.image.fid")
        # Workers exchange what they measured below, and only if they share images.
        options: dict[str, Any] = {
            "reset_real_features": False,
            "sync_on_compute": False,
        }
        if isinstance(features, str):
            sources.need("torch_fidelity")
            # Published FIDs resize without antialiasing.
            options |= {
                "feature": 2048,
                "feature_extractor_weights_path": features,
                "normalize": True,
                "antialias": False,
            }
        else:
            options["feature"] = features
        self._metric = image.FrechetInceptionDistance(**options)
        self._update(real, real=True)

    def __call__(self, images: Iterable[Tensor], shard: Shard | None = None) -> float:
        """Measure generated images in [0, 1], part by part.

        Args:
            images: The images, or a worker's share of them.
            shard: Given if workers measure their shares together.
        """
        self._metric.reset()
        self._update(images, real=False)
        if shard is not None:
            for name in _GENERATED:
                setattr(self._metric, name, shard.sum(getattr(self._metric, name)))
        return float(self._metric.compute())

    @torch.no_grad()
    def _update(self, images: Iterable[Tensor], *, real: bool) -> None:
        for part in images:
            # Inception has three input channels.
            coloured = part.expand(-1, 3, -1, -1) if self._is_inception else part
            self._metric.update(coloured.to(self._metric.device), real=real)

    @property
    def _is_inception(self) -> bool:
        return not self._metric.used_custom_model

    def to(self, device: torch.device) -> None:
        """Compute the features on another device."""
        self._metric.to(device)


def write_untrained_inception(path: Path) -> None:
    """Write a file like that of FID's Inception weights, with random ones.

    It lets a rehearsal measure FID's time and memory; its values mean nothing.
    """
    published = sources.need("torch_fidelity.feature_extractor_inceptionv3")

    class Untrained(published.FeatureExtractorInceptionV3):  # type: ignore[misc,name-defined]
        def load_state_dict(self, *_: Any, **__: Any) -> None:
            """Keep the random weights: the constructor loads a file."""

    torch.save({}, path)
    torch.save(Untrained("untrained", ["2048"], str(path)).state_dict(), path)


class Features(nn.Module):
    """The 64 features of the last hidden layer of a small CNN classifier."""

    num_features = 64

    def __init__(self, channels: int, side: int, classes: int) -> None:
        super().__init__()
        self.body = small_cnn(channels, side, classes)[:-2]
        self.classifier = nn.Linear(self.num_features, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return one vector per image."""
        return adaptive_avg_pool2d(self.body(images), 1).flatten(1)


@lru_cache(maxsize=4)
def classifier_features(dataset: str, side: int) -> Features:
    """Train a classifier on a dataset and return it as a feature extractor.

    Like FID's Inception network it is the same for every seed of a task: it trains on
    all digits, or on the first images of a larger dataset, in a fixed order.
    """
    data = load_images(dataset, 0)
    x = torch.cat([data.x_train, data.x_test])[:_CLASSIFIED]
    y = torch.cat([data.y_train, data.y_test])[:_CLASSIFIED]
    images = scaled(x, side)
    with torch.random.fork_rng([]), torch.enable_grad():
        torch.manual_seed(0)
        network = Features(images.shape[1], side, data.classes)
        optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
        for epoch in range(15):
            for inputs, labels in Batches((images, y), 64, 0, epoch=epoch):
                optimizer.zero_grad()
                loss = cross_entropy(network.classifier(network(inputs)), labels)
                torch.autograd.backward(loss)
                optimizer.step()
    return network.eval().requires_grad_(False)


def pixel_gaussian(
    images: ByteImages, count: int, part: int, generator: torch.Generator
) -> Iterator[Tensor]:
    """Sample a Gaussian with the mean and covariance of the pixels, part by part.

    With independent standard normal ``z_i``, the sum of ``z_i (x_i - mean)`` over n
    images, divided by ``sqrt(n - 1)``, has exactly the covariance of the images: no
    matrix of all pairs of pixels is needed. At most 5,000 images are used.
    """
    combined = images[:_COMBINED]
    centred = torch.empty(len(combined), math.prod(images.shape))
    # Part by part and in place: each copy of 5,000 faces takes 0.25 GB.
    for rows, some in zip(
        torch.split(centred, part), combined.parts(part), strict=True
    ):
        rows.copy_(some.flatten(1))
    mean = centred.mean(0)
    centred.sub_(mean).div_(math.sqrt(max(len(centred) - 1, 1)))
    for begin in range(0, count, part):
        drawn = min(part, count - begin)
        noise = torch.randn(drawn, len(centred), generator=generator)
        yield (mean + noise @ centred).clamp(0, 1).view(drawn, *images.shape)
