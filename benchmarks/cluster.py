"""A comparison with --executor ray: two workers against one, on the same cells.

    python benchmarks/cluster.py [--cells 16] [--epochs 60] [--repeats 2]

Each run starts its own Ray on this machine with as many CPUs as workers. Startup and a
short warm-up comparison, in which the workers import torch, are timed separately from
the cells. "beside" is the cost of a cell beyond training and evaluation: setup,
checkpoints and Ray. Workers slow each other down when other programs are busy, so the
speed-up is limited by the seconds within a cell.
"""

import argparse
import logging
import os
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import ray
import records
from rich.console import Console
from rich.table import Table

from switch_ema.bench.execute.cells import train_cells
from switch_ema.bench.plan.cells import make_plan
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.train.context import RunContext

STORE = 80 << 20
"""Bytes of Ray's object store: results are small."""


@dataclass(frozen=True)
class Run:
    """One comparison, in seconds."""

    start: float
    """Until the workers finished their first cells."""
    cells: float
    """From the first cell to the last result."""
    within: float
    """Training and evaluation, mean per cell."""
    beside: float
    """Other time of a cell, mean."""
    load: float
    """Load of the machine before the run."""


def run(workers: int, cells: int, epochs: int) -> Run:
    load, began = os.getloadavg()[0], time.perf_counter()
    ray.init(
        "local",
        num_cpus=workers,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        object_store_memory=STORE,
    )
    try:
        train(2 * workers, 1, first_seed=cells)
        start = time.perf_counter() - began
        wall, inside = train(cells, epochs)
    finally:
        ray.shutdown()
    within = inside / cells
    return Run(start, wall, within, wall * workers / cells - within, load)


def train(cells: int, epochs: int, first_seed: int = 0) -> tuple[float, float]:
    """Return the total time of all cells, and the sum of the times within them."""
    config = CompareConfig(
        tasks=("digits",),
        methods=("plain",),
        seeds=cells,
        first_seed=first_seed,
        epochs=epochs,
    )
    with tempfile.TemporaryDirectory() as folder:
        context = RunContext(Path(folder), "cpu")
        began = time.perf_counter()
        found = train_cells(
            make_plan(config), lambda _: context, 0, lambda *_: None, executor="ray"
        )
        results = [result for _, result in found]
        wall = time.perf_counter() - began
    for result in results:
        if result.status != "done":
            raise RuntimeError(f"A cell {result.status}: {result.message}")
    return wall, sum(r.train_seconds + r.evaluate_seconds for r in results)


def ratios(runs: dict[int, list[Run]]) -> dict[str, float]:
    """Compare the runs of the same repeat, most workers with fewest."""
    few, many = min(runs), max(runs)
    pairs = list(zip(runs[few], runs[many], strict=True))
    return {
        "speed": statistics.median(a.cells / b.cells for a, b in pairs),
        "allowed_by_the_cells": statistics.median(
            many / few * a.within / b.within for a, b in pairs
        ),
    }


def show(results: dict[str, Any], runs: dict[int, list[Run]], console: Console) -> None:
    table = Table("workers", title=f"{results['cells']} cells of digits")
    columns = ("start", "all cells", "within a cell", "beside a cell", "load")
    for column in columns:
        unit = "" if column == "load" else ", s"
        table.add_column(column + unit, justify="right")
    for workers, repeats in runs.items():
        for one in repeats:
            seconds = one.start, one.cells, one.within, one.beside, one.load
            table.add_row(str(workers), *(f"{value:.2f}" for value in seconds))
    console.print(table)
    console.print(
        f"{max(runs)} workers are {results['ratios']['speed']:.2f} times as fast as "
        f"{min(runs)}; the cells alone allow "
        f"{results['ratios']['allowed_by_the_cells']:.2f}."
    )
    console.print(records.conditions(results))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cells", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=60, help="per cell")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--json", type=Path, default=records.RESULTS / "cluster.json")
    arguments = parser.parse_args()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    results = records.describe_run()
    results |= {"cells": arguments.cells, "epochs": arguments.epochs}
    runs: dict[int, list[Run]] = {workers: [] for workers in arguments.workers}
    for repeat in range(arguments.repeats):
        # Alternate the order, so a machine that slows down slows both.
        for workers in arguments.workers[:: -1 if repeat % 2 else 1]:
            runs[workers].append(run(workers, arguments.cells, arguments.epochs))
    results["ratios"] = ratios(runs)
    results["runs"] = {
        str(workers): [asdict(one) for one in repeats]
        for workers, repeats in runs.items()
    }
    records.write(results, arguments.json)
    show(results, runs, Console(width=120))


if __name__ == "__main__":
    main()
