"""False-positive rate of plain against plain, through the real pipeline.

    python benchmarks/chance.py [--repeats 200] [--seeds 8] [--epochs 3]

Each repeat is a complete comparison of `plain-again` (a different data order) with
`plain` on fresh seeds, stacked, from its configuration to its verdict.
"""

import argparse
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import records
from rich.console import Console
from rich.table import Table

from switch_ema.bench.compare import run_comparison
from switch_ema.bench.execute.options import RunOptions
from switch_ema.bench.plan.config import CompareConfig


def verdict(task: str, number: int, seeds: int, epochs: int) -> tuple[str, float]:
    """Run one comparison; return its verdict and p-value."""
    config = CompareConfig(
        tasks=(task,),
        methods=("plain", "plain-again"),
        seeds=seeds,
        first_seed=number * seeds,
        epochs=epochs,
        stack="auto",
    )
    with tempfile.TemporaryDirectory() as folder:
        options = RunOptions(
            out=Path(folder), executor="inline", device="cpu", keep_checkpoints="none"
        )
        run = run_comparison(config, options)
    if run.error is not None:
        raise run.error
    (summary,) = run.summary.tasks
    result = summary.results[summary.metrics[0].name][1]
    assert result.difference is not None, "both have finished"
    return result.verdict, result.difference.p


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--task", default="digits")
    parser.add_argument("--json", type=Path, default=records.RESULTS / "chance.json")
    arguments = parser.parse_args()
    results: dict[str, Any] = records.describe_run()
    results |= {key: vars(arguments)[key] for key in ("task", "seeds", "epochs")}
    found = [
        verdict(arguments.task, number, arguments.seeds, arguments.epochs)
        for number in range(arguments.repeats)
    ]
    counts = Counter(word for word, _ in found)
    results |= {"verdicts": dict(counts), "p": [p for _, p in found]}
    records.write(results, arguments.json)
    table = Table("verdict on plain-again", "comparisons", "share")
    for word, count in counts.items():
        table.add_row(word, str(count), f"{count / len(found):.1%}")
    console = Console()
    console.print(table)
    console.print(records.conditions(results))


if __name__ == "__main__":
    main()
