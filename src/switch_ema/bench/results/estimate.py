"""How long trainings will take, by what the same task has cost in earlier runs."""

from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path

from switch_ema.bench.errors import UsageError
from switch_ema.bench.plan.cells import Cell
from switch_ema.bench.results.folder import RESULTS
from switch_ema.bench.results.store import Results
from switch_ema.bench.spec import is_script


def time_from_history(cells: Sequence[Cell], out: Path) -> float | None:
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
        with suppress(UsageError), closing(Results(path)) as results:  # or damaged
            for task, methods, seeds, seconds, epochs in results.costs():
                if epochs:
                    found[task, methods, seeds] = seconds / epochs
    return found
