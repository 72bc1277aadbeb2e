"""The results of a comparison: one SQLite file with a single writer."""

import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from switch_ema.bench.errors import UsageError
from switch_ema.bench.plan.cells import Cell
from switch_ema.bench.recipe import TRAINING_LOSS
from switch_ema.bench.spec import is_script
from switch_ema.bench.train.result import CellResult

_APPLICATION = 0x53454D41  # "SEMA", marks our SQLite files
_VERSION = 1
_SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS cells (
    id TEXT PRIMARY KEY, task TEXT NOT NULL, optimizer TEXT, methods TEXT NOT NULL,
    seeds TEXT NOT NULL, split TEXT NOT NULL, status TEXT NOT NULL,
    message TEXT NOT NULL, train_seconds REAL NOT NULL, evaluate_seconds REAL NOT NULL,
    memory_mb REAL NOT NULL, finished REAL NOT NULL);
CREATE TABLE IF NOT EXISTS metrics (
    cell TEXT NOT NULL REFERENCES cells (id), method TEXT NOT NULL,
    seed INTEGER NOT NULL, metric TEXT NOT NULL, epoch INTEGER NOT NULL, value REAL,
    PRIMARY KEY (cell, method, seed, metric, epoch)) WITHOUT ROWID;
"""

_NOTE = "INSERT OR REPLACE INTO meta VALUES (?, ?)"

ORIGIN, TRIVIAL, TRAINED, OPTIONS = "initial weights", "trivial", "trained", "options"
SHARE, REPORTED, OPTIMIZER = "surviving share", "reported", "optimizer"
"""Key prefixes in the metadata that trainings store about a task."""
PROCESSOR = "processor seconds"
"""Key prefix of a cell's processor time."""
CHECKS = "checks"
"""Key prefix of what is checked about a cell: its start, and methods that were idle."""

MEMORY, OF_STATE = "memory", "of the training's state"
"""Metadata: what ``memory_mb`` means; runs without it stored the process's memory."""

_TABLES = {"meta", "cells", "metrics"}

_WAIT_SECONDS = 120.0
"""How long to wait for another process that reads or writes the file."""

FINISHED = ("done", "diverged")
"""Statuses of trainings that a resumed run skips."""


class Results:
    """A comparison's results, open for reading or writing."""

    def __init__(self, path: Path, *, create: bool = False) -> None:
        self.path = path
        if not create and not path.is_file():
            raise UsageError(f"{path} does not exist; is it the folder of a run?")
        for suffix in ("", "-journal", "-wal", "-shm"):
            file = path.with_name(f"{path.name}{suffix}")
            if file.is_symlink():  # it may lead out of the run folder
                raise UsageError(f"{file} is a symbolic link; replace it by the file.")
        if create:
            path.parent.mkdir(parents=True, exist_ok=True)
        with self._errors():
            # A reader, such as a report, may lock the file for a while.
            self._connection = sqlite3.connect(path, timeout=_WAIT_SECONDS)
            self._check(create)

    @classmethod
    def in_memory(cls, path: Path) -> "Results":
        """Create an empty store that no file holds.

        Args:
            path: names the store in messages.
        """
        results = cls.__new__(cls)
        results.path = path
        results._connection = sqlite3.connect(":memory:")
        results._create()
        return results

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def _check(self, create: bool) -> None:
        application = self._pragma("application_id")
        query = "SELECT name FROM sqlite_master WHERE type = 'table'"
        tables = {name for (name,) in self._connection.execute(query)}
        is_new = application == 0 and not tables
        # 0.1.0 created its tables one by one and could be killed in between.
        is_unfinished = application == _APPLICATION and not tables >= _TABLES
        if create and (is_new or is_unfinished):
            self._create()
        elif is_new or is_unfinished:
            raise UsageError(f"{self.path} is empty; was the run ever started?")
        elif application != _APPLICATION:
            raise UsageError(f"{self.path} is an SQLite file of another program.")
        elif self._pragma("user_version") != _VERSION:
            raise UsageError(
                f"{self.path} was written by another version of switch-ema."
            )

    def _create(self) -> None:
        """Create all tables in one transaction: a kill leaves all of them or none."""
        statements = [
            "BEGIN IMMEDIATE",
            f"PRAGMA application_id = {_APPLICATION}",
            f"PRAGMA user_version = {_VERSION}",
            *_SCHEMA.strip().split(";\n"),
            "COMMIT",
        ]
        for statement in statements:
            self._connection.execute(statement)

    def _pragma(self, name: str) -> int:
        return int(self._connection.execute(f"PRAGMA {name}").fetchone()[0])

    def set_meta(self, key: str, value: str) -> None:
        """Store an entry of metadata about the comparison."""
        with self._errors(), self._connection:
            self._connection.execute(_NOTE, (key, value))

    def meta(self) -> dict[str, str]:
        """Return all metadata."""
        with self._errors():
            rows = self._connection.execute("SELECT key, value FROM meta")
            return {str(key): str(value) for key, value in rows}

    def add(self, cell: Cell, result: CellResult) -> None:
        """Store a finished cell and its metadata in one transaction."""
        row = (
            *(cell.id, cell.task, cell.optimizer, json.dumps(cell.methods)),
            *(json.dumps(cell.seeds), cell.split, result.status, result.message),
            *(result.train_seconds, result.evaluate_seconds, result.memory_mb),
            time.time(),
        )
        metrics = [
            (cell.id, method, seed, metric, epoch, value)
            for method, by_metric in result.values.items()
            for metric, epochs in by_metric.items()
            for epoch, values in enumerate(epochs, start=1)
            for seed, value in zip(cell.seeds, values, strict=True)
        ]
        metrics += [  # of the last weights alone; 0 stands for the end
            (cell.id, method, seed, TRAINING_LOSS, 0, loss)
            for method, losses in result.training_losses.items()
            for seed, loss in zip(cell.seeds, losses, strict=True)
        ]
        trivial = json.dumps(result.trivial) if result.trivial else ""
        notes = {f"{ORIGIN} of {cell.task}": result.origin}
        notes[f"{TRIVIAL} of {cell.task}"] = trivial
        if is_script(cell.task) and result.values:
            names = list(next(iter(result.values.values())))
            notes[f"{REPORTED} of {cell.task}"] = json.dumps(names)
        if cell.evaluated_split == "test" and result.trained:
            notes[f"{TRAINED} of {cell.task}"] = json.dumps(result.trained)
            for method, options in result.options.items():
                notes[f"{OPTIONS} of {method} in {cell.task}"] = options
                optimizer = result.trained.get("Optimizer", "")  # scripts may have none
                notes[f"{OPTIMIZER} of {method} in {cell.task}"] = optimizer
        if result.origin:
            notes[f"{ORIGIN} of {cell.id}"] = result.origin
        checks = {**asdict(result.starts), "idle": result.idle}
        if result.status in FINISHED and any(checks.values()):
            notes[f"{CHECKS} of {cell.id}"] = json.dumps(checks)
        if result.processor_seconds:
            notes[f"{PROCESSOR} of {cell.id}"] = repr(result.processor_seconds)
        if result.share is not None:
            for method in cell.methods:
                notes[f"{SHARE} of {method} in {cell.task}"] = repr(result.share)
        with self._errors(), self._connection:
            for key, value in notes.items():
                if value:
                    self._connection.execute(_NOTE, (key, value))
            self._connection.execute("DELETE FROM metrics WHERE cell = ?", (cell.id,))
            self._connection.execute(
                f"INSERT OR REPLACE INTO cells VALUES ({','.join('?' * 12)})", row
            )
            self._connection.executemany(
                "INSERT INTO metrics VALUES (?, ?, ?, ?, ?, ?)", metrics
            )

    def statuses(self) -> dict[str, str]:
        """Return the status of each stored cell."""
        with self._errors():
            return dict(self._connection.execute("SELECT id, status FROM cells"))

    def last_finished(self) -> float | None:
        """Return when the last training ended, in seconds since the epoch."""
        with self._errors():
            row = self._connection.execute("SELECT MAX(finished) FROM cells").fetchone()
            return None if row[0] is None else float(row[0])

    def cell(self, cell: Cell) -> dict[str, str | float]:
        """Return the status, message and costs of a stored cell."""
        columns = "status, message, train_seconds, evaluate_seconds, memory_mb"
        with self._errors():
            query = f"SELECT {columns} FROM cells WHERE id = ?"
            row = self._connection.execute(query, (cell.id,)).fetchone()
            if row is None:
                raise ValueError(f"{cell} is not stored")
        return dict(zip(columns.split(", "), row, strict=True))

    def costs(self) -> Iterator[tuple[str, tuple[str, ...], int, float, int]]:
        """Yield (task, methods, number of seeds, seconds, epochs), the latest last.

        Only successful trainings; the seconds cover training and evaluation.
        """
        query = (
            "SELECT task, methods, seeds, train_seconds + evaluate_seconds, "
            "(SELECT MAX(epoch) FROM metrics WHERE metrics.cell = cells.id) "
            "FROM cells WHERE status = 'done' ORDER BY finished"
        )
        with self._errors():
            rows = self._connection.execute(query).fetchall()
            for task, methods, seeds, seconds, epochs in rows:
                number = len(json.loads(seeds))
                names = tuple(json.loads(methods))
                yield str(task), names, number, float(seconds), int(epochs or 0)

    def curves(self, cell: Cell) -> Iterator[tuple[str, int, str, list[float]]]:
        """Yield (method, seed, metric, value per epoch); NaN is stored as NULL."""
        query = (
            "SELECT method, seed, metric, value FROM metrics WHERE cell = ? "
            "ORDER BY method, seed, metric, epoch"
        )
        curves: dict[tuple[str, int, str], list[float]] = {}
        with self._errors():
            for *key, value in self._connection.execute(query, (cell.id,)):
                number = float("nan") if value is None else float(value)
                curves.setdefault(tuple(key), []).append(number)
        for (method, seed, metric), values in curves.items():
            yield method, seed, metric, values

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn SQLite errors and damaged values into a one-sentence UsageError."""
        try:
            yield
        except (sqlite3.DatabaseError, TypeError, ValueError, OverflowError) as error:
            raise UsageError(f"{self.path} cannot be used: {error}.") from None
