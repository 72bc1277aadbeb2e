"""The time that trainings will take: by what earlier runs of the same folder cost."""

from contextlib import closing
from dataclasses import replace

import pytest

from switch_ema.bench.plan.cells import Cell
from switch_ema.bench.results.estimate import time_from_history
from switch_ema.bench.results.store import Results
from switch_ema.bench.task import Recipe
from switch_ema.bench.train.result import CellResult

CELL = Cell("digits", None, Recipe(epochs=2), ("plain", "ema"), (3, 4))


def result(seconds: float, status: str = "done") -> CellResult:
    values = {"plain": {"accuracy": [[1.0, 2.0], [3.0, 4.0]]}}
    return CellResult(status, "", values, seconds - 0.5, 0.5, 100.0)


@pytest.fixture
def out(tmp_path):
    with closing(Results(tmp_path / "run" / "results.sqlite", create=True)) as results:
        results.add(replace(CELL, seeds=(1, 2)), result(100.0))
        results.add(CELL, result(8.0))  # later, so it is this one that counts
        results.add(replace(CELL, seeds=(5, 6)), result(900.0, "failed"))
    return tmp_path


def test_the_cost_of_an_epoch_is_that_of_the_latest_training(out):
    longer = replace(CELL, recipe=Recipe(epochs=10))
    assert time_from_history([longer, longer], out) == pytest.approx(2 * 10 * 4.0)


@pytest.mark.parametrize(
    "change", [{"task": "moons"}, {"methods": ("plain",)}, {"seeds": (3,)}]
)
def test_what_was_never_trained_is_not_guessed(out, change):
    assert time_from_history([CELL, replace(CELL, **change)], out) is None


def test_a_damaged_run_beside_it_changes_nothing(out):
    (out / "damaged").mkdir()
    (out / "damaged" / "results.sqlite").write_bytes(b"not a database" * 100)
    assert time_from_history([CELL], out) == pytest.approx(8.0)
