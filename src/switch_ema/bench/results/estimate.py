"""How long trainings will take, by what the same task has cost in earlier runs."""

import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from switch_ema.bench.plan.cells import Cell
from switch_ema.bench.results.folder import RESULTS
from switch_ema.bench.spec import is_script

_QUERY = """
SELECT task, methods, seeds, train_seconds + evaluate_seconds,
    (SELECT MAX(epoch) FROM metrics WHERE metrics.cell = cells.id)
FROM cells WHERE status = 'done' ORDER BY finished
"""


def estimate_seconds(cells: Sequence[Cell], out: Path) -> float | None:
    """Add up the seconds of all trainings, one after the other.

    None where a task has not been trained before in a run of the same folder, and of
    a script, which knows by itself how long it trains.
    """
    if any(is_script(cell.task) for cell in cells):
        return None
    known = _seconds_per_epoch(out)
    total = 0.0
    for cell in cells:
        own = known.get((cell.task, cell.methods, len(cell.seeds)))
        if own is None:
            return None
        total += own * cell.recipe.epochs
    return total


def _seconds_per_epoch(
    out: Path,
) -> dict[tuple[str, tuple[str, ...], int], float]:
    """Collect the latest costs by task, methods and number of seeds at once."""
    found = {}
    for path in out.glob(f"*/{RESULTS}"):
        try:
            with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as stored:
                rows = stored.execute(_QUERY).fetchall()
            for task, methods, seeds, seconds, epochs in rows:
                if epochs:
                    key = (task, tuple(json.loads(methods)), len(json.loads(seeds)))
                    found[key] = float(seconds) / int(epochs)
        except (sqlite3.Error, TypeError, ValueError):
            continue  # a damaged run can tell nothing
    return found
