"""Reads log files: CSV, JSON lines, JSON and TensorBoard's event files.

Lightning writes ``metrics.csv``, Transformers ``trainer_state.json``, timm
``summary.csv``, MMEngine ``scalars.json``; all of them are read as they are.
"""

import csv
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from math import inf
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
_SUFFIXES = (*_TABLES, *_LINES, ".json")
_KINDS = "CSV, JSON lines, JSON or an event file of TensorBoard"
_HISTORY = "log_history"
"""Key of the values in Transformers' trainer_state.json."""
_DEEPEST = 50
"""Objects within each other that a row may have."""
_NOT_LOGS = re.compile(
    r"((.+_)?config|(all|train|eval|test|predict)_results|hparams|.+\.index|model_index"
    r"|tokenizer|vocab|special_tokens_map|added_tokens|chat_template)\.json"
)
"""What trainers and models write beside logs."""
_STATE = "trainer_state.json"
_CHECKPOINT = re.compile(r"checkpoint-(\d+)")


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
        return _columns(_table_rows(text, path))
    if path.suffix in _LINES:
        return _columns(_line_rows(text, path))
    if path.suffix == ".json":
        return _read_json(text, path)
    raise UsageError(f"{path} is no log that can be read: it must be {_KINDS}.")


def find_logs(folder: Path) -> list[Path]:
    """List the logs below a folder; event files of one folder are one log.

    In an output folder of Transformers, with its checkpoints, tokenizer and events,
    the last ``trainer_state.json`` is the log.
    """
    found: dict[Path, None] = {}
    for path in sorted(folder.rglob("*")):
        if _EVENTS in path.name:
            found[path.parent] = None
        elif path.suffix in _SUFFIXES and not _NOT_LOGS.fullmatch(path.name):
            found[path] = None
    states: dict[Path, Path] = {}
    for path in sorted((p for p in found if p.name == _STATE), key=_trained):
        states[_output_folder(path)] = path
    return [
        path
        for path in found
        if path in states.values() or not {path, *path.parents} & states.keys()
    ]


def _output_folder(state: Path) -> Path:
    is_checkpoint = _CHECKPOINT.fullmatch(state.parent.name)
    return state.parent.parent if is_checkpoint else state.parent


def _trained(state: Path) -> float:
    """Return the steps of a checkpoint; the state of a finished training is last."""
    found = _CHECKPOINT.fullmatch(state.parent.name)
    return int(found[1]) if found else inf


def without_checkpoint(parts: tuple[str, ...]) -> tuple[str, ...]:
    """Leave out the checkpoint that a state of Transformers lies in.

    >>> without_checkpoint(("plain", "seed-0", "checkpoint-30", "trainer_state"))
    ('plain', 'seed-0', 'trainer_state')
    """
    if parts[-1:] == (Path(_STATE).stem,) and _CHECKPOINT.fullmatch(
        "".join(parts[-2:-1])
    ):
        return (*parts[:-2], parts[-1])
    return parts


def as_log(path: Path) -> Path:
    """Return the folder of an event file, which stands for it; others are themselves.

    A training that was continued has written several into one folder.
    """
    return path.parent if _EVENTS in path.name else path


Row = tuple[str, Mapping[str, Any]]
"""Where a row is, for messages, and its cells by name."""


def _lines(text: str) -> list[str]:
    r"""Split at line feeds alone, not at U+2028 and the like, which cells may hold."""
    return text.removesuffix("\n").split("\n")


def _table_rows(text: str, path: Path) -> Iterator[Row]:
    rows = csv.DictReader(_lines(text), delimiter=_TABLES[path.suffix])
    try:
        for row in rows:
            cells = {name.strip(): cell for name, cell in row.items() if name}
            yield f"{path}, line {rows.line_num}", cells
    except csv.Error as error:
        # The reader inside counts lines; before the first row only it exists.
        line = rows.reader.line_num
        raise UsageError(f"{path}, line {line} is not CSV: {error}.") from None


def _line_rows(text: str, path: Path) -> Iterator[Row]:
    lines = _lines(text)
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            if number == len(lines):  # a training that was killed while it wrote
                return
            raise UsageError(f"{where} is not JSON.") from None
        except RecursionError:
            raise UsageError(f"{where} is nested too deeply.") from None
        except ValueError:  # Python refuses to convert such
            raise UsageError(f"{where} has a number of thousands of digits.") from None
        if not isinstance(row, dict):
            raise UsageError(f"{where} must be a JSON object.")
        yield where, _flat(row, where)


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
            return {
                name: [_as_float(v, str(path), name) for v in values if _is_number(v)]
                for name, values in lists.items()
            }
        content = [content]
    if not isinstance(content, list) or not all(isinstance(r, dict) for r in content):
        raise UsageError(f"{path} must be a list of JSON objects, one per evaluation.")
    places = (f"{path}, entry {number}" for number in range(1, len(content) + 1))
    return _columns(
        (where, _flat(row, where)) for where, row in zip(places, content, strict=True)
    )


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


def _flat(row: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Join the names of nested objects.

    >>> _flat({"epoch": 1, "val": {"loss": 0.5}}, "here")
    {'epoch': 1, 'val/loss': 0.5}
    """
    flat = dict(row)
    for _ in range(_DEEPEST):
        if not any(isinstance(value, dict) for value in flat.values()):
            return flat
        nested, flat = flat, {}
        for name, value in nested.items():
            if isinstance(value, dict):
                flat |= {f"{name}/{inner}": cell for inner, cell in value.items()}
            else:
                flat[name] = value
    raise UsageError(f"{where} is nested too deeply: more than {_DEEPEST} objects.")


def _columns(rows: Iterable[Row]) -> Series:
    """Collect the numbers of all rows by their names; other cells are left out."""
    series: Series = {}
    for where, row in rows:
        for name, cell in row.items():
            if isinstance(cell, str):
                try:
                    cell = float(cell)
                except ValueError:
                    continue
            if _is_number(cell):
                series.setdefault(name, []).append(_as_float(cell, where, name))
    return series


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _as_float(value: float, where: str, name: str) -> float:
    try:
        return float(value)
    except OverflowError:
        raise UsageError(
            f"{where}: {name!r} is an integer beyond all floats (about 1e308)."
        ) from None
