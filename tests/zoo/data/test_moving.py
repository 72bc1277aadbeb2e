"""Moving MNIST: digits that move, bounce and stay whole."""

import torch

from switch_ema.zoo.data.moving import STEP, digit_images, moving_clips


def test_digits_move_by_a_step_and_stay_whole():
    digits = torch.ones(1, 4, 4)
    clips = moving_clips(digits, 50, 44, 0, "clips").float() / 255
    assert clips.shape == (50, 20, 1, 44, 44)
    # Two squares of 16 pixels, unless they overlap.
    area = clips.sum((2, 3, 4))
    assert area.max() == 32
    assert area.min() >= 16
    grid = torch.arange(44.0)
    centres = torch.stack(
        [(clips.sum(4) * grid).sum((2, 3)), (clips.sum(3) * grid).sum((2, 3))], -1
    )
    centres = centres / area[..., None]
    apart = (area[:, :-1] == 32) & (area[:, 1:] == 32)
    moved = (centres[:, 1:] - centres[:, :-1])[apart].norm(dim=-1)
    # The mean of two digits moves at most as far as each: 40 pixels of room, rounded.
    assert moved.max() <= 40 * STEP + 2


def test_the_brighter_pixel_is_seen_where_digits_overlap():
    digits = torch.stack([torch.full((8, 8), 0.2), torch.full((8, 8), 1.0)])
    clips = moving_clips(digits, 200, 10, 3, "clips")
    assert set(clips.unique().tolist()) == {0, 51, 255}


def test_the_seed_and_the_name_decide():
    digits = torch.rand(5, 4, 4)
    first = moving_clips(digits, 3, 16, 0, "a")
    assert torch.equal(first, moving_clips(digits, 3, 16, 0, "a"))
    assert not torch.equal(first, moving_clips(digits, 3, 16, 1, "a"))
    assert not torch.equal(first, moving_clips(digits, 3, 16, 0, "b"))


def test_embedded_digits_have_the_size_of_mnist_s():
    for side, digit in ((64, 28), (32, 14), (16, 7)):
        train, test = digit_images("digits", side, 0)
        assert train.shape == (1000, digit, digit)
        assert test.shape == (797, digit, digit)
        assert train.min() >= 0 and train.max() <= 1
