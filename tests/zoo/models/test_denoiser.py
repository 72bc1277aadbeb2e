"""The U-Net of DDPM at the paper's size and small."""

import pytest
import torch

from switch_ema.zoo.models.denoiser import DenoiserShape, create_denoiser
from switch_ema.zoo.tasks.generation.settings import PAPER, SMALL


def test_has_the_published_number_of_parameters():
    with torch.device("meta"):
        models = {name: create_denoiser(PAPER[name].shape) for name in PAPER}
    counts = {
        name: sum(p.numel() for p in model.parameters())
        for name, model in models.items()
    }
    # CelebA attends at another resolution, with as many channels.
    assert counts == {"cifar10": 35_746_307, "celeba": 35_746_307}


def test_predicts_noise_of_the_size_of_the_image():
    model = create_denoiser(SMALL["digits"].shape)
    images = torch.rand(2, 1, 8, 8)
    assert model(images, torch.tensor([0, 999])).sample.shape == images.shape


def test_refuses_sizes_that_do_not_fit():
    with pytest.raises(ValueError, match=r"image_size must be a multiple of 4.*got 6"):
        DenoiserShape(image_size=6, channels=1, widths=(8,) * 3, attends=(False,) * 3)
    with pytest.raises(ValueError, match="attends must have 2 values"):
        DenoiserShape(image_size=8, channels=1, widths=(8, 8), attends=(False,))
