"""Seeds per second: many seeds in one training against one by one, interleaved.

    python benchmarks/stacking.py [--repeats 3] [--seeds 32] [--epochs 10]
    python benchmarks/stacking.py --sweep lr=0.0125,0.05,0.2 --seeds 8

Both are the same comparison of plain, EMA and Switch EMA by `switch-ema compare` with
two processes, once stacked and once with `--stack off`; with `--sweep` at several
learning rates, once rate by rate (`--stack auto`) and once with all of them stacked
(`--stack all`). Seeds per second count only training and evaluation; the whole command
also starts processes, makes data and writes results.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import records
from rich.console import Console
from rich.table import Table

from switch_ema.bench.compare import run_comparison
from switch_ema.bench.execute.options import RunOptions
from switch_ema.bench.plan.config import CompareConfig

TASKS = ("noisy-digits", "mnist1d")
EXECUTOR, JOBS = "local", 2


def measure(
    task: str, stack: str, seeds: int, epochs: int, sweep: str | None
) -> dict[str, float]:
    """Run one comparison; return its seeds per second and total time."""
    config = CompareConfig(
        tasks=(task,),
        methods=("plain", "ema", "switch-ema"),
        seeds=seeds,
        epochs=epochs,
        stack=stack,
        sweep=sweep,
    )
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        options = RunOptions(
            out=Path(folder),
            executor=EXECUTOR,
            jobs=JOBS,
            device="cpu",
            keep_checkpoints="none",
        )
        run = run_comparison(config, options)
    whole = time.perf_counter() - began
    if run.error is not None:
        raise run.error
    # A sweep has a summary per setting; shared trainings appear in each.
    costs = {cost.methods: cost for task in run.summary.tasks for cost in task.costs}
    busy = sum(
        cost.seeds * (cost.train_seconds + cost.evaluate_seconds)
        for cost in costs.values()
    )
    return {"seeds per second": seeds / (busy / JOBS), "whole command, s": whole}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--tasks", nargs="+", default=TASKS)
    parser.add_argument("--sweep", help="learning rates, such as lr=0.0125,0.05,0.2")
    parser.add_argument("--json", type=Path, default=records.RESULTS / "stacking.json")
    arguments = parser.parse_args()
    results: dict[str, Any] = records.describe_run()
    results |= {"seeds": arguments.seeds, "epochs": arguments.epochs, "tasks": {}}
    apart, together = ("auto", "all") if arguments.sweep else ("off", "auto")
    table = Table("task", "apart", "stacked", "ratio", "whole command, ratio")
    for task in arguments.tasks:
        found: dict[str, list[dict[str, float]]] = {apart: [], together: []}
        for repeat in range(arguments.repeats):
            # Alternate the order, so other load affects both.
            for stack in (apart, together)[:: 1 if repeat % 2 == 0 else -1]:
                own = measure(
                    *(task, stack, arguments.seeds, arguments.epochs, arguments.sweep)
                )
                found[stack].append(own)
            results["tasks"][task] = found
            records.write(results, arguments.json)
        ratios, commands = (
            [
                other[key] / own[key]
                if key.startswith("whole")
                else own[key] / other[key]
                for own, other in zip(found[together], found[apart], strict=True)
            ]
            for key in ("seeds per second", "whole command, s")
        )
        rates = [
            statistics.median(one["seeds per second"] for one in found[stack])
            for stack in (apart, together)
        ]
        table.add_row(
            task,
            *(f"{rate:.2f} seeds/s" for rate in rates),
            *(
                f"{statistics.median(r):.1f}x ({min(r):.1f} to {max(r):.1f})"
                for r in (ratios, commands)
            ),
        )
    console = Console()
    console.print(table)
    console.print(records.conditions(results))


if __name__ == "__main__":
    main()
