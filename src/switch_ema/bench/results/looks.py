"""The looks of a run that adds seeds until its verdicts are settled.

A look is a number of seeds after which a task is judged. A task gets no more seeds once
it is settled, so the tasks of a run may end with different numbers of seeds.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

from switch_ema.bench.errors import UsageError
from switch_ema.bench.plan.cells import Cell
from switch_ema.bench.results.folder import RESULTS
from switch_ema.bench.results.store import Results
from switch_ema.bench.text import read_json

_LOOKS = "looks"
"""Metadata key of a run's looks."""

Looks = dict[str, tuple[int, ...]]
"""Numbers of seeds by task, in order; the last ones may still be training."""


def load_looks(meta: Mapping[str, str]) -> Looks:
    """Load the looks of a run; runs with a fixed number of seeds have none."""
    stored = read_json(meta.get(_LOOKS, "{}"), "the run's list of looks")
    try:
        looks = {task: tuple(numbers) for task, numbers in stored.items()}
    except (AttributeError, TypeError):
        looks = {"": ("damaged",)}
    for numbers in looks.values():
        if not numbers or not all(type(n) is int and n > 0 for n in numbers):
            raise UsageError("the run's list of looks is damaged.")
    return looks


def stored_looks(folder: Path) -> Looks:
    """Return the looks of a run folder, which may not exist yet."""
    file = folder / RESULTS
    if not file.is_file():
        return {}
    with closing(Results(file)) as results:
        return load_looks(results.meta())


def note_looks(results: Results, looks: Looks) -> None:
    """Store the looks, before the seeds of the last ones are trained."""
    results.set_meta(_LOOKS, json.dumps(looks))


def up_to_looks(cells: Sequence[Cell], looks: Looks, first_seed: int) -> list[Cell]:
    """Select the cells that belong to the looks so far."""
    return [
        cell
        for cell in cells
        if cell.task not in looks or cell.seeds[0] - first_seed < looks[cell.task][-1]
    ]
