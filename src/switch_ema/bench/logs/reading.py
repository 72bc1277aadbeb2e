"""Reads log files: CSV, JSON lines, JSON and TensorBoard event files.

Supports Lightning's ``metrics.csv``, Transformers' ``trainer_state.json``, timm's
``summary.csv`` and MMEngine's ``scalars.json`` unchanged.
"""

import csv
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from math import inf
from pathlib import Path
from typing import Any

from switch_ema._checks import listed
from switch_ema._extras import needed
from switch_ema.bench.errors import UsageError
from switch_ema.bench.text import printable, read_json, read_utf8

Series = dict[str, list[float]]
"""Values by column, in file order, without empty cells."""

_EVENTS = "tfevents"
_TABLES = {".csv": ",", ".tsv": "\t"}
_LINES = (".jsonl", ".ndjson")
_SUFFIXES = (*_TABLES, *_LINES, ".json")
_KINDS = "CSV, JSON lines, JSON or a TensorBoard event file"
_HISTORY = "log_history"
"""Key of the values in Transformers' trainer_state.json."""
_LONGEST = 40
"""Characters of a column's name in a message."""
_DEEPEST = 50
"""Maximum nesting of objects in a row."""
_NOT_LOGS = re.compile(
    r"((.+_)?config|(all|train|eval|test|predict)_results|hparams|.+\.index|model_index"
    r"|tokenizer|vocab|special_tokens_map|added_tokens|chat_template)\.json"
)
"""Other files that trainers and models write next to logs."""
_STATE = "trainer_state.json"
_CHECKPOINT = re.compile(r"checkpoint-(\d+)")


def read_log(path: Path) -> Series:
    """Return the numbers in a log by column.

    Args:
        path: a file, or a folder of event files, which are one training.

    Raises:
        UsageError: the log cannot be read, or has no numbers.
    """
    series = _read(path)
    found = {name: values for name, values in series.items() if values}
    if not found:
        columns = f"its columns are {shown(series)}" if series else "it is empty"
        raise UsageError(f"{printable(str(path))} has no numbers: {columns}.")
    return found


def shown(columns: Iterable[str]) -> str:
    """List the first columns of a log for a message, none at full length.

    >>> shown(["epoch", "loss " * 20])
    'epoch, loss loss loss loss loss loss loss loss…'
    """
    names = [n if len(n) <= _LONGEST else f"{n[: _LONGEST - 1]}…" for n in columns]
    return listed(names, most=10)


def _read(path: Path) -> Series:
    """Return the numbers by column; columns without a number are empty."""
    if path.is_dir() or _EVENTS in path.name:
        return _read_events(path)
    text = read_utf8(path)
    if path.suffix in _TABLES:
        return _columns(_table_rows(text, path))
    if path.suffix in _LINES:
        return _columns(_line_rows(text, path))
    if path.suffix == ".json":
        return _read_json(text, path)
    raise UsageError(f"cannot read {path} as a log; it must be {_KINDS}.")


def find_logs(folder: Path) -> list[Path]:
    """List the logs below a folder; the event files of a folder are one log.

    In an output folder of Transformers, with checkpoints, tokenizer and events, the
    last ``trainer_state.json`` is the log.
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
    """Return a checkpoint's step; the state of a finished training sorts last."""
    found = _CHECKPOINT.fullmatch(state.parent.name)
    return int(found[1]) if found else inf


def without_checkpoint(parts: tuple[str, ...]) -> tuple[str, ...]:
    """Strip the checkpoint folder from the path of a Transformers state.

    >>> without_checkpoint(("plain", "seed-0", "checkpoint-30", "trainer_state"))
    ('plain', 'seed-0', 'trainer_state')
    """
    if parts[-1:] == (Path(_STATE).stem,) and _CHECKPOINT.fullmatch(
        "".join(parts[-2:-1])
    ):
        return (*parts[:-2], parts[-1])
    return parts


def as_log(path: Path) -> Path:
    """Return the folder of an event file, or the path itself.

    A resumed training writes several event files into one folder.
    """
    return path.parent if _EVENTS in path.name else path


Row = tuple[str, Mapping[str, Any]]
"""Location of a row, for messages, and its cells by name."""


def _lines(text: str) -> list[str]:
    r"""Split at line feeds only: cells may contain U+2028 and the like."""
    return text.removesuffix("\n").split("\n")


def _table_rows(text: str, path: Path) -> Iterator[Row]:
    rows = csv.DictReader(_lines(text), delimiter=_TABLES[path.suffix])
    try:
        # The names first, for the message about a table without rows.
        yield str(path), {name.strip(): None for name in rows.fieldnames or () if name}
        for row in rows:
            cells = {name.strip(): cell for name, cell in row.items() if name}
            yield f"{path}, line {rows.line_num}", cells
    except csv.Error as error:
        # Before the first row, only the inner reader exists and knows the line.
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
            if number == len(lines):  # a training was killed while writing it
                return
            raise UsageError(f"{where} is not JSON.") from None
        except RecursionError:
            raise UsageError(f"{where} is nested too deeply.") from None
        except ValueError:  # Python refuses to convert these
            raise UsageError(
                f"{where} has a number with thousands of digits."
            ) from None
        if not isinstance(row, dict):
            raise UsageError(f"{where} must be a JSON object.")
        yield where, _flat(row, where)


def _read_json(text: str, path: Path) -> Series:
    """Read one JSON document or one per line, regardless of the file extension."""
    first = text.partition("\n")[0]
    if first.startswith("{") and first.rstrip().endswith("}") and "\n{" in text:
        return _columns(_line_rows(text, path))
    content = read_json(text, str(path))
    if isinstance(content, dict) and isinstance(content.get(_HISTORY), list):
        content = content[_HISTORY]
    if isinstance(content, dict):
        lists = {k: v for k, v in content.items() if isinstance(v, list)}
        if lists:  # a history by name, as in Keras
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
    # It warns about a missing TensorFlow, which is irrelevant here.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with needed(
        "tensorboard", extra="tensorboard", user=printable(str(path)), error=UsageError
    ):
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
    for tag in tags["tensors"]:  # scalars as written by TensorFlow 2
        found = [event.tensor_proto for event in events.Tensors(tag)]
        if all(len(proto.float_val) == 1 for proto in found):
            series[tag] = [float(proto.float_val[0]) for proto in found]
    return series


def _flat(row: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Flatten nested objects by joining their names.

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
    """Collect the numbers of all rows by column; other cells are skipped."""
    series: Series = {}
    for where, row in rows:
        for name, cell in row.items():
            values = series.setdefault(name, [])
            if isinstance(cell, str):
                try:
                    cell = float(cell)
                except ValueError:
                    continue
            if _is_number(cell):
                values.append(_as_float(cell, where, name))
    return series


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _as_float(value: float, where: str, name: str) -> float:
    try:
        return float(value)
    except OverflowError:
        raise UsageError(
            f"{where}: {name!r} is an integer too large for a float (about 1e308)."
        ) from None
