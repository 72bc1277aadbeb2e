"""Bad ingredients are refused, and what follows from the good ones."""

from dataclasses import replace

import pytest

from switch_ema.zoo.procedures import TrainingProcedure

PLAIN = TrainingProcedure(epochs=1, batch_size=2, optimizer="sgd", crop="shifted")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epochs", 0),
        ("batch_size", 2.5),
        ("repeats", 0),
        ("train_resolution", 0),
        ("test_resolution", -1),
        ("test_crop", 0.0),
        ("test_crop", 1.01),
        ("crop_area", 0.0),
        ("label_smoothing", 1.0),
        ("dropout", 1.0),
        ("stochastic_depth", -0.1),
        ("erasing", 1.0),
        ("warmup_epochs", -1),
        ("rand_magnitude", 11),
        ("rand_magnitude", 7.5),
        ("rand_deviation", -0.5),
        ("color_jitter", -0.1),
        ("mixup", -1),
        ("cutmix", float("nan")),
        ("clip", 0),
        ("ema_decay", 1.0),
        ("switch_ema_decay", -0.1),
        ("crop", "centre"),
        ("loss", "mse"),
    ],
)
def test_bad_values_are_named(name, value):
    with pytest.raises(ValueError, match=f"{name} must be .*{value}"):
        replace(PLAIN, **{name: value})


def test_ends_of_the_ranges_are_allowed():
    replace(PLAIN, test_crop=1.0, crop_area=1.0, rand_magnitude=10, ema_decay=0.0)


@pytest.mark.parametrize("name", ["mixup", "cutmix"])
def test_either_alpha_blends_images(name):
    assert not PLAIN.mixes
    assert replace(PLAIN, **{name: 0.2}).mixes


@pytest.mark.parametrize(
    "change",
    [
        {"crop": "resized"},
        {"rand_magnitude": 9},
        {"auto_augment": True},
        {"color_jitter": 0.4},
    ],
)
def test_what_needs_single_images(change):
    assert PLAIN.works_on_batches
    assert not replace(PLAIN, **change).works_on_batches


def test_erasing_and_blending_work_on_batches():
    assert replace(PLAIN, erasing=0.5, mixup=0.8, repeats=3).works_on_batches
