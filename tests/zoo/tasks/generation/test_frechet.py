"""Fréchet distances of features, against the formula and known cases."""

import pytest
import torch
from scipy.linalg import sqrtm
from torch import nn

from switch_ema.zoo.data.byte_images import ByteImages
from switch_ema.zoo.data.images import load_digit_images
from switch_ema.zoo.tasks.generation.frechet import (
    FrechetDistance,
    classifier_features,
    pixel_gaussian,
)


class Pixels(nn.Flatten):
    """Pixels as features."""

    num_features = 4


def test_distance_is_that_of_the_formula():
    generator = torch.Generator().manual_seed(0)
    real = torch.rand(200, 1, 2, 2, generator=generator)
    made = torch.rand(300, 1, 2, 2, generator=generator) ** 2
    a, b = (x.flatten(1).double() for x in (real, made))
    covariances = [torch.cov(x.T) for x in (a, b)]
    root = torch.from_numpy(sqrtm((covariances[0] @ covariances[1]).numpy()).real)
    spread = torch.trace(covariances[0] + covariances[1] - 2 * root)
    expected = (a.mean(0) - b.mean(0)).square().sum() + spread
    distance = FrechetDistance(real.split(70), Pixels())
    assert distance([made]) == pytest.approx(expected.item(), rel=1e-4)
    assert distance([real]) == pytest.approx(0, abs=1e-4)
    assert distance(made.split(110)) == pytest.approx(expected.item(), rel=1e-4), (
        "not summed up"
    )


def test_gaussian_has_the_moments_of_the_pixels():
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(80, 130, (500, 1, 3, 3), generator=generator).byte()
    pixels[:, :, 1] = pixels[:, :, 0]
    images = ByteImages(pixels, 3)
    parts = list(pixel_gaussian(images, 20_000, 6000, generator))
    assert [len(part) for part in parts] == [6000, 6000, 6000, 2000]
    drawn = torch.cat(parts)
    assert drawn.shape == (20_000, 1, 3, 3)
    for moment in (lambda x: x.mean(0), lambda x: torch.cov(x.T)):
        expected = moment(images.floats().flatten(1))
        assert torch.allclose(moment(drawn.flatten(1)), expected, atol=0.003)


def test_classifier_is_the_same_every_time_and_knows_digits():
    images, labels = load_digit_images()
    state = torch.get_rng_state()
    network = classifier_features("digits", 8)
    assert torch.equal(torch.get_rng_state(), state)
    found = network.classifier(network(images)).argmax(1)
    assert (found == labels).float().mean() > 0.97
    classifier_features.cache_clear()
    again = classifier_features("digits", 8)
    assert torch.equal(again(images[:5]), network(images[:5]))
