"""Reads log files: CSV, JSON lines, JSON and TensorBoard's event files.

Lightning writes ``metrics.csv``, Transformers ``trainer_state.json``, timm
``summary.csv``, MMEngine ``scalars.json``; all of them are read as they are.
"""

import csv
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from switch_ema._extras import needed
from switch_ema.bench.errors import UsageError
from switch_ema.bench.text import read_json, read_utf8

Series = dict[str, list[float]]
"""The values of each column in the order of the file, without empty cells."""

_EVENTS = "tfevents"
_TABLES = {".csv": ",", ".tsv": "\t"}
_LINES = (".jsonl", ".ndjson")
_KINDS = "CSV, JSON lines, JSON or an event file of TensorBoard"
_HISTORY = "log_history"
"""Key of the values in Transformers' trainer_state.json."""
_NOT_LOGS = {"hparams.json", "config.json", "all_results.json", "train_results.json"}


def read_log(path: Path) -> Series:
    """Return the numbers of a log by their names.

    Args:
        path: a file, or the folder of event files, which are one training.

    Raises:
        UsageError: it cannot be read.
    """
    if path.is_dir() or _EVENTS in path.name:
        return _read_events(path)
    text = read_utf8(path)
    if path.suffix in _TABLES:
        return _columns(_table_rows(text, _TABLES[path.suffix]))
    if path.suffix in _LINES:
        return _columns(_line_rows(text, path))
    if path.suffix == ".json":
        return _read_json(text, path)
    raise UsageError(f"{path} is no log that can be read: it must be {_KINDS}.")


def find_logs(folder: Path) -> list[Path]:
    """List the logs below a folder; event files of one folder are one log."""
    found: dict[Path, None] = {}
    for path in sorted(folder.rglob("*")):
        if _EVENTS in path.name:
            found[path.parent] = None
        elif path.suffix in (*_TABLES, *_LINES, ".json") and path.name not in _NOT_LOGS:
            found[path] = None
    return list(found)


def as_log(path: Path) -> Path:
    """Return the folder of an event file, which stands for it; others are themselves.

    A training that was continued has written several into one folder.
    """
    return path.parent if _EVENTS in path.name else path


def _table_rows(text: str, delimiter: str) -> Iterator[Mapping[str, Any]]:
    for row in csv.DictReader(text.splitlines(), delimiter=delimiter):
        yield {name.strip(): cell for name, cell in row.items() if name}


def _line_rows(text: str, path: Path) -> Iterator[Mapping[str, Any]]:
    lines = text.splitlines()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            if number == len(lines):  # a training that was killed while it wrote
                return
            raise UsageError(f"{path}, line {number} is not JSON.") from None
        if not isinstance(row, dict):
            raise UsageError(f"{path}, line {number} must be a JSON object.")
        yield _flat(row)


def _read_json(text: str, path: Path) -> Series:
    """Read one JSON text, or one in each line, whatever the ending of the name."""
    first = text.partition("\n")[0]
    if first.startswith("{") and first.rstrip().endswith("}") and "\n{" in text:
        return _columns(_line_rows(text, path))
    content = read_json(text, str(path))
    if isinstance(content, dict) and isinstance(content.get(_HISTORY), list):
        content = content[_HISTORY]
    if isinstance(content, dict):
        lists = {k: v for k, v in content.items() if isinstance(v, list)}
        if lists:  # a history by name, as Keras has it
            return {str(k): list(filter(_is_number, v)) for k, v in lists.items()}
        content = [content]
    if not isinstance(content, list) or not all(isinstance(r, dict) for r in content):
        raise UsageError(f"{path} must be a list of JSON objects, one per evaluation.")
    return _columns(map(_flat, content))


def _read_events(path: Path) -> Series:
    # Its messages about a missing TensorFlow are of no use to anybody here.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with needed("tensorboard", extra="bench", user=str(path), error=UsageError):
        from tensorboard.backend.event_processing import (  # type: ignore[import-untyped]
            event_accumulator,
        )
    events = event_accumulator.EventAccumulator(
        str(path), size_guidance={"scalars": 0, "tensors": 0}
    )
    events.Reload()
    tags = events.Tags()
    series = {
        tag: [float(event.value) for event in events.Scalars(tag)]
        for tag in tags["scalars"]
    }
    for tag in tags["tensors"]:  # scalars as TensorFlow 2 writes them
        found = [event.tensor_proto for event in events.Tensors(tag)]
        if all(len(proto.float_val) == 1 for proto in found):
            series[tag] = [float(proto.float_val[0]) for proto in found]
    return series


def _flat(row: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Join the names of nested objects.

    >>> _flat({"epoch": 1, "val": {"loss": 0.5}})
    {'epoch': 1, 'val/loss': 0.5}
    """
    flat: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{name}/")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def _columns(rows: Iterable[Mapping[str, Any]]) -> Series:
    """Collect the numbers of all rows by their names; other cells are left out."""
    series: Series = {}
    for row in rows:
        for name, cell in row.items():
            if isinstance(cell, str):
                try:
                    cell = float(cell)
                except ValueError:
                    continue
            if _is_number(cell):
                series.setdefault(name, []).append(float(cell))
    return series


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
