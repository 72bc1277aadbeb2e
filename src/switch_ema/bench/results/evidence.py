"""Evidence: the values of a comparison as a small text file, to be kept under git.

A file of JSON lines. The first line has the format and the name. Lines with ``meta``
follow: configuration, versions, machine, commit, date and facts about the tasks. Then
each training has a line with ``cell``, followed by its values, one line for each
method, seed and metric: ``values`` at the epochs that the cell lists, or only ``last``.
Of the metric that decides, at most ``MOST_POINTS`` epochs are kept, of the others the
last one.

Trainings are sorted by seed, so added seeds are added lines. Reading a file gives the
same store that a run folder has, so all statistics and reports work on both.
"""

import json
import math
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from switch_ema._files import write_atomically
from switch_ema.bench.errors import UsageError
from switch_ema.bench.plan.cells import Cell
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.plan.sweep_points import POINTS, load_points, plan_points
from switch_ema.bench.plan.task_snapshot import FACTS, load_facts, retrained
from switch_ema.bench.recipe import TRAINING_LOSS
from switch_ema.bench.results.folder import (
    CONFIG,
    INPUTS,
    RESULTS,
    config_of,
    locked,
    open_run,
)
from switch_ema.bench.results.looks import load_looks, up_to_looks
from switch_ema.bench.results.store import CHECKS, FINISHED, PROCESSOR, Results
from switch_ema.bench.spec import is_file, is_script, parse_task
from switch_ema.bench.text import EVIDENCE, is_evidence, listed, read_json, read_utf8
from switch_ema.bench.train.result import CellResult
from switch_ema.bench.train.starts import Starts

MOST_POINTS = 32
"""Epochs of a curve that are kept, the last one among them."""
_FORMAT = 1
_DIGITS = 8
"""Significant digits of values: more than float32 has."""
_FIRST = ("config", "tuned config", POINTS, "looks", FACTS)
"""Metadata in this order; the rest follows by name."""
_LEFT_OUT = (CHECKS, PROCESSOR)
"""Metadata of single trainings, which their own lines have."""
_COSTS = ("train_seconds", "evaluate_seconds", "memory_mb", "processor_seconds")


@dataclass(frozen=True)
class EvidenceCell:
    """One training of an evidence file."""

    facts: Mapping[str, Any]
    """Its task, methods, seeds, kept epochs, status, costs and checks."""
    lines: list[Mapping[str, Any]] = field(default_factory=list)
    """Its values."""

    @property
    def key(self) -> tuple[str, tuple[str, ...], tuple[int, ...]]:
        """The task, the methods and the seeds."""
        own = self.facts
        return str(own["task"]), tuple(own["methods"]), tuple(own["seeds"])


@dataclass(frozen=True)
class Evidence:
    """Content of an evidence file."""

    path: Path
    name: str
    meta: Mapping[str, str]
    cells: Sequence[EvidenceCell]

    @property
    def config(self) -> CompareConfig:
        """The configuration of the comparison, with tuned methods and swept values."""
        return config_of(self.meta, self.path)

    @property
    def given(self) -> CompareConfig:
        """The configuration as given by the user."""
        return CompareConfig.from_json(self.meta["config"], str(self.path))


def publish(run: Path, target: Path, name: str) -> Path:
    """Write the results of a run folder to an evidence file.

    A file of the same comparison is replaced by one with the same or more trainings.

    Args:
        run: the run folder.
        target: the file; its folder is created.
        name: name of the comparison.

    Raises:
        UsageError: the file holds another comparison, or trainings that the run lacks.
    """
    config, results = open_run(run)
    with closing(results):
        meta = results.meta()
        _refuse_paths(config)
        cells = [
            cell
            for cell in _planned(config, meta)
            if results.statuses().get(cell.id) in FINISHED
        ]
        if not cells:
            raise UsageError(f"{run} has no finished training to publish.")
        lines = [
            {EVIDENCE: _FORMAT, "name": name},
            *_meta_lines(meta),
            *(line for cell in cells for line in _cell_lines(results, meta, cell)),
        ]
    if target.is_file():
        given = CompareConfig.from_json(meta["config"], str(run))
        _check_extends(read_evidence(target), given, cells)
    target.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines)
    return write_atomically(target, text)


def read_evidence(path: Path) -> Evidence:
    """Read an evidence file; errors give the line number."""
    meta: dict[str, str] = {}
    cells: list[EvidenceCell] = []
    first, *lines = read_utf8(path).splitlines() or [""]
    head = read_json(first, f"{path}, line 1,")
    if not isinstance(head, dict) or head.get(EVIDENCE) != _FORMAT:
        raise UsageError(
            f"{path} is not an evidence file of format {_FORMAT}, as written by "
            "--publish."
        )
    for number, text in enumerate(lines, start=2):
        line = read_json(text, f"{path}, line {number},")
        try:
            if "meta" in line:
                meta[str(line["meta"])] = _as_text(line["value"])
            elif "cell" in line:
                cells.append(EvidenceCell(dict(line["cell"])))
                _ = cells[-1].key
            else:
                _ = line["method"], line["seed"], line["metric"]
                cells[-1].lines.append(line)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError):
            raise UsageError(f"{path}, line {number}, is damaged.") from None
    if "config" not in meta:
        raise UsageError(f"{path} has no configuration.")
    return Evidence(path, str(head.get("name", path.stem)), meta, cells)


def open_results(path: Path) -> tuple[CompareConfig, Results]:
    """Open a run folder or an evidence file; the file is loaded into memory."""
    if path.is_dir() or not is_evidence(path):
        return open_run(path)
    found = read_evidence(path)
    results = Results.in_memory(path)
    _load(found, results)
    return found.config, results


def restore(found: Evidence, folder: Path) -> None:
    """Create a run folder from an evidence file, to add seeds to it.

    Raises:
        UsageError: this version trains the comparison differently.
    """
    if changed := retrained(found.meta, found.config.tasks):
        raise UsageError(
            f"this version trains {listed(changed)} differently than when {found.path} "
            "was published; delete the file to start again."
        )
    with locked(folder), closing(Results(folder / RESULTS, create=True)) as results:
        _load(found, results)
        results.set_meta(INPUTS, found.given.inputs)
        write_atomically(folder / CONFIG, found.given.to_json())


def _load(found: Evidence, results: Results) -> None:
    """Write the content of an evidence file into a store."""
    planned = {
        (cell.task, cell.methods, cell.seeds): cell
        for cell in _planned(found.config, found.meta)
    }
    facts = load_facts(found.meta, found.config.tasks)
    metrics = {task: {m.name for m in own.metrics} for task, own in facts.items()}
    for one in found.cells:
        if one.key not in planned:
            raise UsageError(
                f"{found.path}: its configuration does not train {one.key[0]} with "
                f"{listed(one.key[1])} and seed {one.key[2][0]}."
            )
        try:
            results.add(planned[one.key], _result(one, metrics[one.key[0]]))
        except (KeyError, TypeError, ValueError, IndexError):
            raise UsageError(
                f"{found.path}: the values of {planned[one.key]} are damaged."
            ) from None
    for key, value in found.meta.items():
        results.set_meta(key, value)


def _planned(config: CompareConfig, meta: Mapping[str, str]) -> list[Cell]:
    """List the cells of a comparison as the stored facts about its tasks give them."""
    facts = load_facts(meta, config.tasks)
    cells = plan_points(config, load_points(meta), facts)
    return up_to_looks(cells, load_looks(meta), config.first_seed)


def _refuse_paths(config: CompareConfig) -> None:
    """Refuse tasks that exist on one machine only."""
    for task in config.tasks:
        if is_script(task) or (is_file(parse_task(task)) and Path(task).is_absolute()):
            raise UsageError(
                f"{task} cannot be published, since others could not train it; publish "
                "tasks by name, or by a path relative to the current folder."
            )


def _check_extends(
    before: Evidence, config: CompareConfig, cells: Sequence[Cell]
) -> None:
    """Refuse to overwrite another comparison, or trainings that are missing now."""
    if before.given.identity != config.identity:
        raise UsageError(
            f"{before.path} holds a comparison with other settings; delete it, or "
            "choose another --evidence folder."
        )
    now = {(cell.task, cell.methods, cell.seeds) for cell in cells}
    if missing := [one.key for one in before.cells if one.key not in now]:
        raise UsageError(
            f"{before.path} has {len(missing)} trainings that this run lacks; delete "
            "it to publish the run instead."
        )


def _meta_lines(meta: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    own = [key for key in meta if key.split(" of ")[0] not in _LEFT_OUT]
    order = {key: place for place, key in enumerate(_FIRST)}
    for key in sorted(own, key=lambda key: (order.get(key, len(order)), key)):
        if key != INPUTS:
            yield {"meta": key, "value": _as_value(meta[key])}


def _as_value(text: str) -> Any:
    """Decode JSON objects and lists, which are easier to read than quoted text."""
    if not text.startswith(("{", "[")):
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _cell_lines(
    results: Results, meta: Mapping[str, str], cell: Cell
) -> Iterator[dict[str, Any]]:
    row = results.cell(cell)
    curves = list(results.curves(cell))
    first = _deciding(curves, meta, cell.task)
    epochs = _kept_epochs([values for _, _, name, values in curves if name == first])
    own = {**row, "processor_seconds": meta.get(f"{PROCESSOR} of {cell.id}", 0)}
    yield {
        "cell": {
            "task": cell.task,
            "methods": list(cell.methods),
            "seeds": list(cell.seeds),
            "epochs": epochs,
            "status": row["status"],
            **({"message": row["message"]} if row["message"] else {}),
            **{name: round(float(own[name]), 2) for name in _COSTS},
            **json.loads(meta.get(f"{CHECKS} of {cell.id}", "{}")),
        }
    }
    place = {method: number for number, method in enumerate(cell.methods)}
    ordered = sorted(curves, key=lambda curve: (curve[1], place.get(curve[0], 0)))
    for method, seed, metric, values in ordered:
        line: dict[str, Any] = {"method": method, "seed": seed, "metric": metric}
        if metric == first:
            line["values"] = [_number(values[epoch - 1]) for epoch in epochs]
        else:
            line["last"] = _number(values[-1])
        yield line


def _deciding(
    curves: Sequence[tuple[str, int, str, list[float]]],
    meta: Mapping[str, str],
    task: str,
) -> str:
    """Name the metric whose curve is kept: the task's first."""
    known = load_facts(meta, [task])[task].metrics
    return known[0].name if known else curves[0][2]


def _kept_epochs(curves: Sequence[Sequence[float]]) -> list[int]:
    """Choose epochs with values, evenly, counted back from the last one.

    >>> _kept_epochs([[math.nan, 2.0, math.nan, 4.0]])
    [2, 4]
    >>> len(_kept_epochs([[1.0] * 100]))
    25
    """
    length = max(map(len, curves), default=0)
    there = [
        epoch
        for epoch in range(1, length + 1)
        if epoch == length or any(not math.isnan(curve[epoch - 1]) for curve in curves)
    ]
    step = math.ceil(len(there) / MOST_POINTS)
    return there[::-1][::step][::-1] if there else []


def _number(value: float) -> float | str | None:
    """Round a value; NaN, as for epochs that were not evaluated, becomes null.

    >>> _number(38.2), _number(2 / 3), _number(math.inf), _number(math.nan)
    (38.2, 0.66666667, 'inf', None)
    """
    if math.isnan(value):
        return None
    return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else str(value)


def _result(one: EvidenceCell, metrics: Container[str]) -> CellResult:
    """Rebuild the result of a training; epochs that were not kept are NaN.

    Args:
        one: the training.
        metrics: names of the task's own metrics.
    """
    own, epochs = one.facts, list(one.facts["epochs"])
    place = {seed: number for number, seed in enumerate(own["seeds"])}
    values: dict[str, dict[str, list[list[float]]]] = {}
    losses: dict[str, list[float]] = {}
    for line in one.lines:
        method, metric, at = line["method"], line["metric"], place[line["seed"]]
        if metric == TRAINING_LOSS and metric not in metrics:
            mine = losses.setdefault(method, [math.nan] * len(place))
            mine[at] = _read_number(line["last"])
            continue
        table = values.setdefault(method, {}).setdefault(
            metric, [[math.nan] * len(place) for _ in range(epochs[-1])]
        )
        if "values" in line:
            for epoch, value in zip(epochs, line["values"], strict=True):
                table[epoch - 1][at] = _read_number(value)
        else:
            table[-1][at] = _read_number(line["last"])
    starts = Starts(own.get("weights", []), own.get("batch", []), own.get("end", []))
    return CellResult(
        status=str(own["status"]),
        message=str(own.get("message", "")),
        values=values,
        train_seconds=float(own["train_seconds"]),
        evaluate_seconds=float(own["evaluate_seconds"]),
        memory_mb=float(own["memory_mb"]),
        training_losses=losses,
        starts=starts,
        idle=dict(own.get("idle", {})),
        processor_seconds=float(own["processor_seconds"]),
    )


def _read_number(value: float | str | None) -> float:
    return math.nan if value is None else float(value)
