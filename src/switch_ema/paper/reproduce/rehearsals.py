"""Stored rehearsals of rows, and the time of whole trainings that follows from them."""

import dataclasses
import json
import os
import platform
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from switch_ema._files import write_atomically
from switch_ema.bench.plan.cells import Cell, make_plan
from switch_ema.bench.results.environment import describe_environment
from switch_ema.bench.train.rehearsal import CellRehearsal
from switch_ema.paper.reproduce.full_size import full_size
from switch_ema.paper.reproduce.plan import RowPlan

FOLDER = "rehearsals"
_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """What the rehearsal of a row has shown."""

    table: str
    row: str
    task: str
    """The row's own task, without the reductions of the rehearsal."""
    data: str
    """Where the data was found, or that it was generated."""
    missing: tuple[str, ...] = ()
    """What the whole training needs and was not found."""
    batch: int | None = None
    """Examples per step, if reduced for the rehearsal."""
    side: int | None = None
    """Height and width of the images, if reduced."""
    machine: str
    when: str
    """Day of the rehearsal."""
    seconds: float
    """Duration of the rehearsal."""
    measured: CellRehearsal | None = None
    """None if it failed."""
    error: str = ""
    """Why it failed."""

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {"version": _VERSION, **dataclasses.asdict(self)}

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> "Rehearsal":
        """Read what ``to_json`` returned."""
        own = {key: value for key, value in stored.items() if key != "version"}
        measured = own.pop("measured")
        own["missing"] = tuple(own["missing"])
        return cls(
            **own, measured=None if measured is None else CellRehearsal(**measured)
        )


def this_machine() -> str:
    """Name the machine and its devices, since times hold only there."""
    import torch

    names = [
        torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())
    ]
    found = describe_environment()
    kinds = [f"{names.count(name)} x {name}" for name in dict.fromkeys(names)]
    cpu = f"{found['processor']}, {os.cpu_count()} cores"
    return ", ".join([platform.node(), cpu, *kinds])


def save_rehearsal(out: Path, rehearsal: Rehearsal) -> Path:
    """Store a rehearsal; it replaces an earlier one of the row."""
    path = _path(out, rehearsal.table, rehearsal.row)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(rehearsal.to_json(), indent=1) + "\n")
    return path


def load_rehearsal(out: Path, table: str, row: str) -> Rehearsal | None:
    """Read the rehearsal of a row; None if there is none that this version reads."""
    path = _path(out, table, row)
    if not path.is_file():
        return None
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        return Rehearsal.from_json(stored) if stored["version"] == _VERSION else None
    except (ValueError, TypeError, KeyError):
        return None


def _path(out: Path, table: str, row: str) -> Path:
    return out / FOLDER / table / f"{row}.json"


def rehearsed_hours(plan: RowPlan, out: Path) -> float | None:
    """Return the hours of a row on this machine, one training at a time.

    None without a rehearsal of the same task here, at full resolution.
    """
    found = load_rehearsal(out, plan.table.name, plan.row.name)
    if found is None or (found.task, found.machine) != (
        plan.config.tasks[0],
        this_machine(),
    ):
        return None
    return estimated_hours(found, make_plan(plan.config))


def estimated_hours(rehearsal: Rehearsal, cells: Iterable[Cell]) -> float | None:
    """Extrapolate a rehearsal to whole trainings of cells.

    Examples of all epochs take the time of an example in a rehearsed step, or in the
    input pipeline if that is slower, and examples of evaluations the time of a
    rehearsed one. None if the rehearsal failed or had smaller images.
    """
    found, size = rehearsal.measured, full_size(rehearsal.task)
    if found is None or rehearsal.side is not None:
        return None
    example = max(found.loop_seconds / found.batch, 1 / found.input_rate)
    share = (1, 1) if found.evaluated is None else (size.evaluated, size.last)
    each, last = (
        seconds * examples / (found.evaluated or 1)
        for seconds, examples in zip(
            (found.evaluate_seconds, found.last_seconds), share, strict=True
        )
    )
    total = 0.0
    for cell in cells:
        evaluations = (cell.recipe.evaluations - 1) * each + last
        total += cell.recipe.epochs * size.trained * example
        total += evaluations * len(cell.methods)
    return total / 3600
