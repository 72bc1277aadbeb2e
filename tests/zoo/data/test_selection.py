"""What is drawn from the seed: parts of the data, held-out images, wrong labels."""

import pytest
import torch

from switch_ema.zoo.data.selection import split_and_redraw, subset
from switch_ema.zoo.data.vision import VisionSet


@pytest.fixture
def data():
    numbers = torch.arange(100, dtype=torch.uint8)
    images, labels = numbers.view(100, 1, 1, 1), torch.arange(100) % 10
    one = torch.ones(1, 1, 1)
    return VisionSet(images, labels, images, labels, 10, one, one, mirrored=True)


def test_images_keep_their_labels(data):
    part = subset(data, 30, 20, seed=1)
    for x, y, count in (
        (part.x_train, part.y_train, 30),
        (part.x_test, part.y_test, 20),
    ):
        assert len(x) == count
        assert torch.equal(x.flatten().long() % 10, y)
        assert len(x.unique()) == count


def test_all_is_kept_unless_told_otherwise(data):
    assert len(subset(data, None, None, seed=1).y_train) == 100


def test_too_many_are_refused(data):
    with pytest.raises(ValueError, match="test_size must be at most 100, got 101"):
        subset(data, 30, 101, seed=1)


def test_held_out_images_have_right_labels(data):
    parts = split_and_redraw(data, 0.5, 1, split="validation")
    assert len(parts.y_test) == 20
    assert torch.equal(parts.x_test.flatten().long() % 10, parts.y_test)
    assert not set(parts.x_test.flatten().tolist()) & set(
        parts.x_train.flatten().tolist()
    )
    wrong = parts.x_train.flatten().long() % 10 != parts.y_train
    assert 20 < int(wrong.sum()) < 50


def test_tests_are_untouched_by_noise(data):
    parts = split_and_redraw(data, 0.5, 1, split="test")
    assert torch.equal(parts.y_test, data.y_test)
    assert 30 < int((parts.y_train != data.y_train).sum()) <= 50
