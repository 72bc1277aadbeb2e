"""Append-only log of a training's values, one line per epoch.

Stored in checkpoints instead, the values would make each of them larger and slower to
write than the one before.
"""

import json
import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from switch_ema.bench.recipe import is_usable

Values = dict[str, dict[str, list[list[float]]]]
"""By method and metric: per epoch, one value per seed; NaN where not evaluated."""

Latest = tuple[str, float]
"""Name of a metric and its latest value, averaged over seeds."""
OnProgress = Callable[[int, Latest | None], object]
"""Callback with the number of finished epochs and the latest value, if any."""


def latest_of(metrics: Mapping[str, Sequence[Sequence[float]]]) -> Latest | None:
    """Return the latest value of the first metric, over seeds that have one.

    >>> nan = float("nan")
    >>> latest_of({"accuracy": [[50.0, 70.0], [80.0, nan], [nan, nan]], "nll": [[1.0]]})
    ('accuracy', 80.0)
    """
    for metric, epochs in metrics.items():
        for values in reversed(epochs):
            usable = [value for value in values if is_usable(value)]
            if usable:
                return metric, fmean(usable)
        break
    return None


def read_progress(path: Path, method: str) -> tuple[int, Latest | None]:
    """Return the number of epochs in a log and the latest value of a method."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    for line in reversed(lines):
        latest = latest_of({k: [v] for k, v in _parsed(line)[method].items()})
        if latest is not None:
            return len(lines), latest
    return len(lines), None


class ValueLog:
    """Log file with one line per epoch: a checksum, then the values as JSON."""

    def __init__(self, path: Path) -> None:
        self._path, self._lines = path, 0

    @property
    def lines(self) -> int:
        """Number of epochs in the file."""
        return self._lines

    def add(self, values: Values) -> None:
        """Append the epochs that the file does not have yet, and sync it to disk."""
        epochs = max((len(v) for m in values.values() for v in m.values()), default=0)
        if epochs == self._lines:
            return
        lines = [_line(values, epoch) for epoch in range(self._lines, epochs)]
        with self._path.open("ab" if self._lines else "wb") as file:
            file.write(b"".join(lines))
            file.flush()
            # A checkpoint refers to these lines, so they must be on disk before it.
            os.fsync(file.fileno())
        self._lines = epochs

    def read(self, lines: int) -> Values:
        """Read the first epochs; lines after them, left by a kill, are cut off.

        Raises:
            ValueError: epochs are missing, or a line is damaged.
        """
        if not lines:
            return {}
        content = self._path.read_bytes().split(b"\n")[:lines]
        if len(content) < lines:
            raise ValueError(f"{self._path} has {len(content)} of {lines} epochs")
        values: Values = {}
        for line in content:
            for method, metrics in _parsed(line).items():
                for metric, numbers in metrics.items():
                    found = values.setdefault(method, {}).setdefault(metric, [])
                    found.append([float(number) for number in numbers])
        with self._path.open("rb+") as file:
            file.truncate(sum(len(line) + 1 for line in content))
        self._lines = lines
        return values


def _line(values: Values, epoch: int) -> bytes:
    row = {
        method: {metric: epochs[epoch] for metric, epochs in metrics.items()}
        for method, metrics in values.items()
    }
    text = json.dumps(row, separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _parsed(line: bytes) -> dict[str, Any]:
    checksum, _, text = line.partition(b" ")
    if checksum != b"%08x" % zlib.crc32(text):
        raise ValueError("a line of values is damaged")
    row: dict[str, Any] = json.loads(text)
    return row
