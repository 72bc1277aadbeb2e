"""The results file: what goes in comes out, and nothing else is touched."""

import math
import sqlite3

import pytest

from switch_ema.bench.errors import UsageError
from switch_ema.bench.plan.cells import Cell
from switch_ema.bench.results.store import Results
from switch_ema.bench.task import Recipe
from switch_ema.bench.train.loop import CellResult

CELL = Cell("digits", None, Recipe(), ("plain", "ema"), (3, 4))
VALUES = {
    "plain": {"accuracy": [[1.0, 2.0], [3.0, math.nan]]},
    "ema": {"accuracy": [[5.0, 6.0], [7.0, 8.0]]},
}
RESULT = CellResult("done", "", VALUES, 1.5, 0.5, 100.0)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run" / "results.sqlite"


def test_round_trip(path):
    results = Results(path, create=True)
    results.set_meta("config", "{}")
    results.add(CELL, RESULT)
    results.add(CELL, RESULT)  # again: replaced, not doubled
    results.close()
    again = Results(path)
    assert again.meta() == {"config": "{}"}
    assert again.statuses() == {CELL.id: "done"}
    assert again.cell(CELL)["train_seconds"] == 1.5
    curves = {(m, seed): values for m, seed, _, values in again.curves(CELL)}
    assert curves["plain", 3] == [1.0, 3.0]
    assert curves["ema", 4] == [6.0, 8.0]
    assert math.isnan(curves["plain", 4][1])


def test_a_failed_write_leaves_the_old_content(path):
    results = Results(path, create=True)
    results.add(CELL, RESULT)
    broken = CellResult("done", "", {"plain": {"accuracy": [[1.0, object()]]}})
    with pytest.raises(UsageError, match="cannot be used"):
        results.add(CELL, broken)
    assert len(list(results.curves(CELL))) == 4


def test_files_of_others_are_refused_and_left_alone(path):
    path.parent.mkdir()
    with pytest.raises(UsageError, match="does not exist"):
        Results(path)
    path.write_text("my notes, long enough not to be taken for a database")
    with pytest.raises(UsageError, match="cannot be used: file is not a database"):
        Results(path, create=True)
    assert path.read_text().startswith("my notes")
    path.unlink()
    with sqlite3.connect(path) as foreign:
        foreign.execute("CREATE TABLE mine (x)")
    with pytest.raises(UsageError, match="SQLite file of another program"):
        Results(path, create=True)
    with sqlite3.connect(path) as foreign:
        tables = foreign.execute("SELECT name FROM sqlite_master").fetchall()
    assert tables == [("mine",)]


def test_another_version_is_refused(path):
    Results(path, create=True).close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(UsageError, match="another version"):
        Results(path)
