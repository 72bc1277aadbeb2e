"""Estimates training time from earlier runs of the same task."""

from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path

from switch_ema.bench.errors import UsageError
from switch_ema.bench.plan.cells import Cell
from switch_ema.bench.results.folder import RESULTS
from switch_ema.bench.results.store import Results
from switch_ema.bench.spec import is_script


def time_from_history(cells: Sequence[Cell], out: Path) -> float | None:
    """Return the total seconds of all trainings, run one after the other.

    None if a task has not been trained in this folder before, and for scripts, whose
    length only they know.
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
    """Return the latest cost by task, methods and number of stacked seeds."""
    found = {}
    for path in out.glob(f"*/{RESULTS}"):
        # Other runs may be damaged or from another version; they only lack estimates.
        with suppress(UsageError), closing(Results(path)) as results:
            for task, methods, seeds, seconds, epochs in results.costs():
                if epochs:
                    found[task, methods, seeds] = seconds / epochs
    return found
