"""The results file: what goes in comes out, and nothing else is touched."""

import math
import sqlite3
import threading
from contextlib import closing

import pytest

from switch_ema.bench.errors import UsageError
from switch_ema.bench.plan.cells import Cell
from switch_ema.bench.results.store import Results
from switch_ema.bench.task import Recipe
from switch_ema.bench.train.result import CellResult

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


def test_what_0_1_0_left_when_it_was_killed_is_completed(path):
    """It made its tables one by one; such a folder could never be used again."""
    path.parent.mkdir()
    with sqlite3.connect(path) as file:
        file.execute("PRAGMA application_id = 0x53454D41")
        file.execute("PRAGMA user_version = 1")
        file.execute("CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL)")
    file.close()
    with pytest.raises(UsageError, match="is empty; was the run ever started"):
        Results(path)
    results = Results(path, create=True)
    results.add(CELL, RESULT)
    assert results.statuses() == {CELL.id: "done"}


def test_all_tables_are_made_in_one_transaction(path):
    path.parent.mkdir()
    for number in range(1, 7):
        results = object.__new__(Results)
        results.path, results._connection = path, Dying(sqlite3.connect(path), number)
        with pytest.raises(Killed):
            results._create()
        with closing(sqlite3.connect(path)) as file:
            assert not file.execute("SELECT * FROM sqlite_master").fetchall()
        with closing(Results(path, create=True)) as results:
            assert results.statuses() == {}
        path.unlink()


class Killed(BaseException):
    """The process ends here."""


class Dying:
    """A connection whose process ends at the n-th statement."""

    def __init__(self, connection, statements):
        self.connection, self.left = connection, statements

    def execute(self, statement):
        self.left -= 1
        if self.left < 0:
            self.connection.close()
            raise Killed
        return self.connection.execute(statement)


def test_a_writer_waits_for_a_reader(path):
    """Readers of a few seconds ended a comparison."""
    results = Results(path, create=True)
    reader = sqlite3.connect(path, check_same_thread=False)
    reader.execute("BEGIN EXCLUSIVE")
    timer = threading.Timer(6, reader.rollback)
    timer.start()
    results.add(CELL, RESULT)
    timer.join()
    assert results.statuses() == {CELL.id: "done"}


def test_a_cell_that_is_not_there_is_one_sentence(path):
    with pytest.raises(UsageError, match="is not stored"):
        Results(path, create=True).cell(CELL)


@pytest.mark.parametrize("suffix", ["", "-journal", "-wal"])
def test_a_store_that_is_a_link_is_refused(tmp_path, suffix):
    Results(tmp_path / "outside.sqlite", create=True).close()
    path = tmp_path / "results.sqlite"
    if suffix:
        Results(path, create=True).close()
    (tmp_path / f"results.sqlite{suffix}").symlink_to(tmp_path / "outside.sqlite")
    with pytest.raises(
        UsageError, match=f"results.sqlite{suffix} is a symbolic link; rep"
    ):
        Results(path)
