"""Recipes of rows, with and without their data."""

import math

import pytest

from switch_ema.paper import TABLES
from switch_ema.paper.reproduce.plan import plan_rows
from switch_ema.paper.reproduce.presets import RowSettings
from switch_ema.paper.show.recipe import row_recipe

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
    n = int(found["Steps per epoch"].partition(",")[0])
    left = sum(d**k for k in range(1, n + 1)) / n  # mean lag of a linear drift
    assert f"a switch keeps {1 - left:.1%} of" in method
    assert math.isclose(left, d * (1 - d**n) / (n * (1 - d)))
    assert "crop shifted" in found["Procedure"]
    assert "batch_size 50" in found["Procedure"]


def test_without_the_data_it_shows_the_rest(tmp_path, monkeypatch):
    monkeypatch.setenv("SWITCH_EMA_DATA", str(tmp_path))
    found = recipe("table-2", "deit-s-adamw", tmp_path, scale="paper")
    assert found["Epochs"] == "300"
    assert found["Learning rate"].startswith("cosine:final=1e-3, warmed up over 5")
    assert found["Method switch-ema:decay=0.999"] == "decay 0.999"
    reason = found["Network, groups, steps"]
    assert reason.startswith("unknown without the data") and "imagenet" in reason
