"""Normalising, erasing and blending of a batch, wherever its parts are."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from timm.data import Mixup

from switch_ema.bench.loaders import CPU
from switch_ema.zoo.procedures import UNCHANGED
from switch_ema.zoo.procedures.finishing import Finishing, draw_rectangle

MEAN, DEVIATION = torch.tensor([10.0, 20, 30]), torch.tensor([2.0, 3, 4])


def finishing(**changes):
    return Finishing(
        replace(UNCHANGED, **changes),
        mean=MEAN.view(-1, 1, 1),
        deviation=DEVIATION.view(-1, 1, 1),
        classes=4,
        seed=0,
    )


def chunks(*sizes, side=8):
    torch.manual_seed(0)
    return [
        (
            torch.randint(256, (size, 3, side, side), dtype=torch.uint8),
            torch.randint(4, (size,)),
        )
        for size in sizes
    ]


def normalised(parts):
    images = torch.cat([images for images, _ in parts]).float()
    return (images - MEAN.view(-1, 1, 1)) / DEVIATION.view(-1, 1, 1)


@pytest.mark.parametrize("side", [8, 400])
def test_bytes_are_normalised_as_a_whole_batch_would_be(side):
    parts = chunks(3, 2, side=side)
    x, y = finishing()(parts, seed=0, device=CPU)
    assert torch.equal(x, normalised(parts))
    assert torch.equal(y, torch.cat([labels for _, labels in parts]))


@pytest.mark.parametrize("side", [9, 300])
@pytest.mark.parametrize("alpha", [{"mixup": 0.8}, {"cutmix": 1.0}, {}])
def test_blending_is_that_of_timm(alpha, side):
    alpha = alpha or {"mixup": 0.8, "cutmix": 1.0}
    theirs = Mixup(
        mixup_alpha=alpha.get("mixup", 0.0),
        cutmix_alpha=alpha.get("cutmix", 0.0),
        label_smoothing=0.0,
        num_classes=4,
    )
    parts = chunks(3, 5, side=side)
    for seed in range(4):
        x, y = finishing(**alpha)(parts, seed=seed, device=CPU)
        np.random.seed(seed)
        labels = torch.cat([labels for _, labels in parts])
        expected, targets = theirs(normalised(parts), labels)
        assert torch.equal(x, expected)
        assert torch.equal(y, targets)


def test_erasing_puts_noise_into_a_rectangle_of_some_images():
    augmentation = replace(UNCHANGED, erasing=0.5)
    torch.manual_seed(0)
    images = torch.full((100, 3, 16, 16), 7, dtype=torch.uint8)
    drawn = torch.stack([draw_rectangle(augmentation, image) for image in images])
    labels = torch.zeros(100, dtype=torch.int64)
    finish = finishing(erasing=0.5)
    x, _ = finish([(images, labels, drawn)], seed=0, device=CPU)
    erased = x != normalised([(images, labels)])
    touched = erased.any(dim=(1, 2, 3))
    assert 30 < int(touched.sum()) < 70
    share = erased[touched].float().mean((1, 2, 3))
    assert 0.01 < float(share.min()) < float(share.max()) < 0.4
    noise = x[erased]
    assert abs(float(noise.mean())) < 0.1
    assert float(noise.std()) == pytest.approx(1, abs=0.1)


def test_a_batch_that_is_in_use_is_not_overwritten():
    finish = finishing()
    few, many = chunks(2, side=400), chunks(4, side=400)
    first, _ = finish(few, seed=0, device=CPU)
    weight = torch.ones(1, requires_grad=True)
    loss = (weight * first).sum()  # the graph keeps the images
    expected = first.sum().item()
    address = first.data_ptr()
    del first
    others = [finish(many[:1], seed=0, device=CPU) for _ in range(3)]
    torch.autograd.backward(loss)
    assert weight.grad.item() == expected
    assert len({x.data_ptr() for x, _ in others} | {address}) == 4


def test_the_memory_of_a_batch_is_used_again():
    finish, parts = finishing(), chunks(2, side=400)
    first = finish(parts, seed=0, device=CPU)[0].data_ptr()
    assert finish(parts, seed=0, device=CPU)[0].data_ptr() == first
