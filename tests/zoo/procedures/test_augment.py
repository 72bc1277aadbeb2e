"""Each ingredient of the augmentation does what it says."""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from timm.data.distributed_sampler import RepeatAugSampler

from switch_ema.zoo.procedures import TrainingProcedure, augment

PLAIN = TrainingProcedure(
    epochs=1, batch_size=2, optimizer="sgd", crop="shifted", flip=False
)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def seeded(transform, image, seed=0):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    return np.asarray(transform(image), dtype=np.int16)


@pytest.fixture
def image():
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def test_shift_agrees_with_padding_and_cutting_each_image():
    images = torch.arange(5 * 2 * 6 * 7, dtype=torch.float32).view(5, 2, 6, 7)
    shifted = augment.shift(images, 2, generator())
    moves = torch.randint(-2, 3, (2, 5, 1), generator=generator())
    assert len(moves.unique()) > 2
    for index, image in enumerate(images):
        padded = torch.nn.functional.pad(image[None], (2,) * 4, mode="reflect")[0]
        down, right = (int(move[index]) + 2 for move in moves)
        expected = padded[:, down : down + 6, right : right + 7]
        assert torch.equal(shifted[index], expected)


def test_mirror_flips_about_half():
    images = torch.rand(200, 1, 2, 3)
    mirrored = augment.mirror(images, generator())
    flipped = (mirrored == images.flip(3)).all(dim=(1, 2, 3))
    kept = (mirrored == images).all(dim=(1, 2, 3))
    assert torch.equal(flipped, ~kept)
    assert 60 < int(flipped.sum()) < 140


def test_repeat_agrees_with_the_sampler_of_timm():
    data = range(512)
    sampler = RepeatAugSampler(data, num_replicas=1, rank=0)
    sampler.set_epoch(4)
    order = torch.randperm(512, generator=generator(4))
    assert augment.repeat(order, 3).tolist() == list(sampler)


def test_one_repeat_changes_nothing():
    order = torch.randperm(20, generator=generator())
    assert torch.equal(augment.repeat(order, 1), order)


def test_tests_see_the_middle():
    edge = torch.zeros(2, 1, 40, 40, dtype=torch.uint8)
    edge[..., :2, :] = edge[..., -2:, :] = 255
    whole = augment.resize_and_crop(edge, 40, 1.0)
    assert torch.equal(whole, edge)
    # 40 / 0.875 = 45 pixels, of which 40 stay: 2 or 3 on each side are cut off.
    middle = augment.resize_and_crop(edge, 40, 0.875)
    assert middle.shape == (2, 1, 40, 40)
    assert middle.float().mean() < 0.3 * edge.float().mean()


def test_tests_treat_tensors_and_pictures_alike(image):
    tensor = torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1)
    one = augment.resize_and_crop(tensor[None], 24, 0.9)[0].permute(1, 2, 0).numpy()
    other = np.asarray(augment.resize_and_crop(image, 24, 0.9))
    assert one.shape == other.shape == (24, 24, 3)
    assert np.abs(one.astype(int) - other.astype(int)).max() <= 2


def test_plain_transform_only_moves(image):
    transform = augment.image_transform(PLAIN, 32, flip=False)
    padded = np.pad(np.asarray(image), ((4, 4), (4, 4), (0, 0)), mode="reflect")
    found = seeded(transform, image)
    places = [(down, right) for down in range(9) for right in range(9)]
    assert any(
        np.array_equal(found, padded[down : down + 32, right : right + 32])
        for down, right in places
    )


def test_a_whole_image_stays_as_it_is(image):
    transform = augment.image_transform(replace(PLAIN, crop="none"), 32, flip=False)
    assert np.array_equal(seeded(transform, image), np.asarray(image))


@pytest.mark.parametrize(
    "change",
    [
        {"rand_magnitude": 9},
        {"auto_augment": True},
        {"color_jitter": 0.4},
        {"crop": "resized"},
    ],
)
def test_ingredients_change_the_picture_and_follow_the_seed(change, image):
    transform = augment.image_transform(replace(PLAIN, **change), 32, flip=False)
    plain = augment.image_transform(PLAIN, 32, flip=False)
    results = [seeded(transform, image, seed) for seed in range(6)]
    again = [seeded(transform, image, seed) for seed in range(6)]
    assert all(map(np.array_equal, results, again))
    assert all(result.shape == (32, 32, 3) for result in results)
    same = [
        np.array_equal(result, seeded(plain, image, seed))
        for seed, result in enumerate(results)
    ]
    assert sum(same) <= 3
    assert len({result.tobytes() for result in results}) > 3


def test_the_strongest_posterize_makes_an_image_black(image):
    # At magnitude 10 timm keeps 4 - 4 = 0 bits, which Pillow refuses.
    strongest = replace(PLAIN, crop="none", rand_magnitude=10, rand_deviation=0.0)
    transform = augment.image_transform(strongest, 32, flip=False)
    results = [seeded(transform, image, seed) for seed in range(150)]
    assert 0 < sum(not result.any() for result in results) < 30


def test_flip(image):
    still = replace(PLAIN, crop="resized", crop_area=1.0)
    flat = Image.new("L", (32, 32), 0)
    flat.paste(255, (0, 0, 16, 32))
    transform = augment.image_transform(still, 32, flip=True)
    bright_left = [seeded(transform, flat, s)[:, :8].mean() > 128 for s in range(20)]
    assert 4 < sum(bright_left) < 16


def test_crop_area_is_the_smallest_that_is_kept(image):
    pixels = np.tile(np.arange(64, dtype=np.uint8), (64, 1))
    ramp = Image.fromarray(pixels)

    def widths(area):
        procedure = replace(PLAIN, crop="resized", crop_area=area)
        transform = augment.image_transform(procedure, 64, flip=False)
        return [np.ptp(seeded(transform, ramp, seed)) for seed in range(20)]

    assert min(widths(0.8)) > 40
    assert min(widths(0.08)) < 30
