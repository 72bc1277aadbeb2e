"""Recipes of rows, with and without their data."""

import math
import os
from dataclasses import replace
from operator import attrgetter

import pytest

from switch_ema.paper import TABLES
from switch_ema.paper.reproduce.plan import plan_rows
from switch_ema.paper.reproduce.presets import RowSettings
from switch_ema.paper.show.published_data import (
    published_batches,
    published_data,
    task_of_sample,
)
from switch_ema.paper.show.recipe import row_recipe
from switch_ema.zoo.data.catalog import DATASETS

pytestmark = pytest.mark.zoo


def recipe(table, row, out, **settings):
    (plan,) = plan_rows([TABLES[table]], (row,), RowSettings(**settings), out)
    return dict(row_recipe(plan))


def test_shows_groups_steps_and_the_surviving_share(tmp_path):
    found = recipe("table-3", "deit-s", tmp_path, dataset="digits")
    groups = [text for name, text in found.items() if "group" in name]
    assert [text.rpartition(", ")[2] for text in groups] == [
        "weight decay 0.05",
        "weight decay 0",
    ]
    (method,) = (text for name, text in found.items() if "switch-ema" in name)
    d = float(method.split(";")[0].split("decay ")[1].split(",")[0])
    n = int(found["Steps per epoch"])
    left = sum(d**k for k in range(1, n + 1)) / n  # mean lag of a linear drift
    assert f"a switch keeps {1 - left:.1%} of" in method
    assert math.isclose(left, d * (1 - d**n) / (n * (1 - d)))
    assert "crop shifted" in found["Procedure"]
    assert "batch_size 50" in found["Procedure"]


EXPECTED = {
    # steps per epoch: published examples over the batch, by the rule of the loader
    ("table-2", "deit-s-adamw"): (1_281_167 // 1024, 22_050_664),
    ("table-4", "simmim-stl10"): (105_000 // 2048, None),
    ("table-6", "cascade-mask-rcnn-3x"): (3 * 117_266 // 16, None),
    ("table-7", "yolox-s"): (117_266 // 64, 8_968_255),
    ("table-8", "celeba"): (162_770 // 128, 35_746_307),
    ("table-9", "simvp"): (10_000 // 16, 57_946_113),
    ("table-10", "agedb-convnext-t"): (12_208 // 256, None),
    # 929,589 words in 20 columns of 46,479, of which 46,478 follow another: 664 of 70
    ("table-11", "lstm-sgd"): (664, None),
    ("table-12", "bert-yelp"): (650_000 // 8, 109_486_085),
    # 201,615 sequences of 512, 4 at a time, 16 times in a step
    ("table-12", "bert-wikitext"): (3151, None),
}


@pytest.mark.parametrize(("table", "row"), EXPECTED)
def test_without_the_data_it_shows_everything(table, row, tmp_path, monkeypatch):
    monkeypatch.setenv("SWITCH_EMA_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = recipe(table, row, tmp_path, scale="paper")
    steps, parameters = EXPECTED[table, row]
    assert found["Steps per epoch"] == f"{steps:,}"
    if parameters is not None:
        assert f"{parameters:,} parameters" in found["Network"]
    assert "Parameter group 1" in found and "Data" in found
    (method,) = (text for name, text in found.items() if "switch-ema" in name)
    assert "a switch keeps" in method
    assert os.environ["SWITCH_EMA_DATA"] == str(tmp_path)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("yolox:dataset=coco,scale=paper,batch=7", "data.train"),
        ("classification:dataset=cifar10,network=resnet18,scale=paper,batch=5", "x"),
        ("awd-lstm:scale=paper", "train"),
        ("bert-lm:dataset=wikitext103,scale=paper", "train"),
        ("bert-text:dataset=yelp,scale=paper,weights=none", "x"),
    ],
)
def test_rules_for_steps_are_those_of_the_loaders(text, count, monkeypatch):
    task = task_of_sample(text, 0)
    examples = len(attrgetter(count)(task))
    (name, *_) = published_data(text)
    known = replace(DATASETS[name], trained=examples)
    monkeypatch.setitem(DATASETS, name, known)
    assert published_batches(text, task) == (examples, len(task.train_loader(0)))


def test_fine_tuning_decays_by_layer_without_the_weights(tmp_path):
    found = recipe("table-12", "bert-yelp", tmp_path, scale="paper")
    rates = [
        text.split("learning rate ")[1] for k, text in found.items() if "grou" in k
    ]
    lowest = float(rates[0].partition(",")[0])
    assert lowest == pytest.approx(5e-5 * 0.75**13, rel=1e-3)
