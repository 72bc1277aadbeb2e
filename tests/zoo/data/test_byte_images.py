"""Images as bytes: selected without a copy, read as floats."""

import torch

from switch_ema.zoo.data.byte_images import ByteImages, FloatRows, scaled


def test_images_are_averaged_down():
    images = torch.zeros(1, 1, 4, 4, dtype=torch.uint8)
    images[0, 0, :2, :2] = 255
    assert scaled(images, 2).tolist() == [[[[1, 0], [0, 0]]]]


def test_selections_of_selections_are_read_alike():
    pixels = torch.arange(5 * 12, dtype=torch.uint8).view(5, 3, 2, 2)
    floats = pixels.float() / 255
    images = ByteImages(pixels, 2)
    assert torch.equal(images.floats(), floats)
    order = torch.tensor([4, 0, 3, 1])
    chosen = images[order][1:]
    assert len(chosen) == 3 and chosen.shape == (3, 2, 2)
    assert torch.equal(chosen.floats(), floats[order[1:]])
    assert torch.equal(torch.cat(list(chosen.parts(2))), chosen.floats())
    rows = FloatRows(chosen)
    assert len(rows) == 3
    assert torch.equal(rows[torch.tensor([2, 2])], floats[[1, 1]])


def test_selecting_copies_no_pixels():
    pixels = torch.zeros(4, 1, 2, 2, dtype=torch.uint8)
    chosen = ByteImages(pixels, 2)[torch.tensor([1, 2])]
    pixels[1] = 255
    assert chosen.floats()[0].min() == 1
