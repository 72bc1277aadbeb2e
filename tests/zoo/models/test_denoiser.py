"""The U-Net of DDPM at the paper's size and small."""

import math

import pytest
import torch
from torch import nn

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


def test_embeds_steps_by_the_published_formula():
    model = create_denoiser(SMALL["digits"].shape)  # width 16: 8 sines, 8 cosines
    found = model.time_proj(torch.tensor([7.0]))[0].tolist()
    angles = [7 * 10_000 ** (-i / 7) for i in range(8)]
    expected = [*map(math.sin, angles), *map(math.cos, angles)]
    assert found == pytest.approx(expected, abs=1e-5)


def test_pads_on_the_right_and_below_when_it_halves():
    model = create_denoiser(SMALL["digits"].shape)
    (halving,) = (
        layer
        for layer in model.modules()
        if isinstance(layer, nn.Conv2d) and layer.stride == (2, 2)
    )
    nn.init.zeros_(halving.weight)
    halving.weight.data[:, :, 0, 0] = 1  # reads the top left pixel of each window
    image = torch.zeros(1, 16, 8, 8)
    image[..., 0, 0] = 1
    reads = model.down_blocks[0].downsamplers[0](image)[0, 0]
    assert reads[0, 0] == 16  # with padding on all sides the corner would be a zero


def test_normalises_with_the_published_epsilon():
    model = create_denoiser(SMALL["mnist"].shape)
    norms = [layer for layer in model.modules() if isinstance(layer, nn.GroupNorm)]
    assert {norm.eps for norm in norms} == {1e-6}


def test_starts_with_branches_of_almost_zero():
    torch.manual_seed(0)
    model = create_denoiser(SMALL["mnist"].shape)  # attends in several places
    first = model.down_blocks[0].resnets[0]
    # Xavier: variance 2 / (fan in + fan out), with 9 * 32 each.
    assert first.conv1.weight.std().item() == pytest.approx(
        math.sqrt(1 / 288), rel=0.05
    )
    assert first.conv2.weight.std().item() == pytest.approx(
        1e-5 * math.sqrt(1 / 288), rel=0.05
    )
    weights = dict(model.named_parameters())
    tiny = {name for name, p in weights.items() if p.dim() > 1 and p.abs().max() < 1e-4}
    # 3 + 2 + 6 residual blocks, 1 + 1 + 2 attentions, and the last convolution.
    blocks = {name for name in weights if name.endswith("conv2.weight")}
    attentions = {name for name in weights if name.endswith("to_out.0.weight")}
    assert tiny == blocks | attentions | {"conv_out.weight"}
    assert (len(blocks), len(attentions)) == (11, 4)
    noise = model(torch.randn(4, 1, 16, 16), torch.arange(4)).sample
    assert 0 < noise.std() < 1e-4


def test_refuses_sizes_that_do_not_fit():
    with pytest.raises(ValueError, match=r"image_size must be a multiple of 4.*got 6"):
        DenoiserShape(image_size=6, channels=1, widths=(8,) * 3, attends=(False,) * 3)
    with pytest.raises(ValueError, match="attends must have 2 values"):
        DenoiserShape(image_size=8, channels=1, widths=(8, 8), attends=(False,))
