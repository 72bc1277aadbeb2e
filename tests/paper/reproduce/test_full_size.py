"""Sizes of the paper's trainings."""

from pathlib import Path

import pytest

from switch_ema.bench.errors import UsageError
from switch_ema.paper.reproduce.full_size import FullSize, full_size
from switch_ema.paper.reproduce.plan import plan_rows, select_tables
from switch_ema.paper.reproduce.presets import RowSettings
from switch_ema.zoo.data.vision import TRAINING_IMAGES
from switch_ema.zoo.tasks.detection.settings import _COCO_IMAGES

TABLES = [f"table-{number}" for number in range(2, 13)]


def test_every_row_has_a_size():
    settings = RowSettings(scale="paper")
    plans = plan_rows(select_tables(TABLES), (), settings, Path("none"))
    assert len(plans) == 68
    for plan in plans:
        size = full_size(plan.config.tasks[0])
        assert 8 <= size.batch < size.trained
        assert 1000 < size.evaluated <= size.last


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        (
            "classification:dataset=imagenet,network=deit-s,procedure=deit,scale=paper",
            ("images", TRAINING_IMAGES["imagenet"], 50_000, 50_000, 1024),
        ),
        # k-NN compares 5,000 with 8,000 images; the probe sees all labelled ones.
        (
            "byol:dataset=stl10,network=resnet50,scale=paper",
            ("images", 105_000, 13_000, 13_000, 4096),
        ),
        # 100 epochs of fine-tuning, one image for two features in a rehearsal.
        (
            "simmim:dataset=cifar100,protocol=fine-tune,scale=paper",
            ("images", 50_000, 15_000, 10_000_000, 2048),
        ),
        (
            "cascade-mask-rcnn:dataset=coco,schedule=3x,scale=paper",
            ("images", 3 * _COCO_IMAGES, 5_000, 5_000, 16),
        ),
        ("awd-lstm:scale=paper", ("words", 929_589, 82_430, 82_430, 1400)),
        ("moving-mnist:network=simvp", ("clips", 10_000, 10_000, 10_000, 16)),
    ],
)
def test_sizes_are_the_publishers(task, expected):
    unit, trained, evaluated, last, batch = expected
    assert full_size(task) == FullSize(
        unit=unit, trained=trained, evaluated=evaluated, last=last, batch=batch
    )


def test_other_tasks_have_none():
    with pytest.raises(UsageError, match="digits has no size of its own"):
        full_size("digits")
