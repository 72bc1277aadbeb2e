"""Speed and memory of one EMA update, switch and averaged view, against peers.

    python benchmarks/averaging.py [--models resnet50 gpt] [--repeats 100] [--markdown]

All contestants run interleaved in one process, so machine load affects them equally.
Every time is divided by one flat ``lerp_`` of the same repeat, the minimum cost of a
separate pass over memory. Caches are not flushed, but live weights and shadow together
exceed the usual caches (41 MB for the smallest model), and all other contestants run
between two calls of one: its tensors and Python objects are about as cold as after a
training step.
"""

import argparse
import importlib.metadata
import sys
from pathlib import Path
from typing import Any

import contest
import models
import records
import report
import torch
from peers import CONTESTANTS, DECAY, Contestant
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn
from timing import WARMUP
from torch import nn

RESULTS = records.RESULTS / "averaging.json"


def main() -> int:
    arguments = parse_arguments()
    console = Console(stderr=True)
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    present = [c for c in CONTESTANTS if is_installed(c)]
    results = describe_run(arguments.repeats, present)
    columns = Progress.get_default_columns()
    with Progress(
        *columns, MofNCompleteColumn(), TimeElapsedColumn(), console=console
    ) as progress:
        complete = fill(results, arguments, present, progress)
    if results["models"]:
        if arguments.markdown:
            print(report.markdown(results))
        else:
            report.show(results, Console())
        console.print(f"Written to {arguments.json}")
    return 0 if complete else 130


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    names = list(models.MODELS)
    parser.add_argument("--models", nargs="+", choices=names, default=names)
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--threads", type=int, help="of torch; its default if absent")
    parser.add_argument("--json", type=Path, default=RESULTS)
    parser.add_argument("--markdown", action="store_true", help="for the README")
    arguments = parser.parse_args()
    if arguments.repeats < 1:
        parser.error(f"--repeats must be at least 1, got {arguments.repeats}.")
    return arguments


def fill(
    results: dict[str, Any],
    arguments: argparse.Namespace,
    contestants: list[Contestant],
    progress: Progress,
) -> bool:
    """Measure the models one by one, saving after each; False if interrupted."""
    repeats = arguments.repeats
    try:
        for name in arguments.models:
            try:
                model = models.build(name)
            except ImportError as error:
                progress.console.print(f"{name} is left out: {error}.")
                continue
            task = progress.add_task(name, total=contest.ticks(contestants, repeats))
            results["models"][name] = contest.measure(
                model, contestants, repeats, lambda task=task: progress.advance(task)
            )
            records.write(results, arguments.json)
    except KeyboardInterrupt:
        done = ", ".join(results["models"]) or "no model"
        progress.console.print(f"Interrupted; finished: {done}.")
        return False
    return True


def is_installed(contestant: Contestant) -> bool:
    """Try the contestant on a tiny model, which triggers its imports."""
    try:
        contestant.build(nn.Linear(1, 1))
    except ImportError:
        return False
    return True


def describe_run(repeats: int, present: list[Contestant]) -> dict[str, Any]:
    return records.describe_run() | {
        "decay": DECAY,
        "repeats": repeats,
        "builds": contest.BUILDS,
        "warmup": WARMUP,
        "contestants": {
            contestant.name: {
                "package": contestant.package,
                "version": version(contestant.package),
                "averages_buffers": contestant.averages_buffers,
                "missing": contestant not in present,
            }
            for contestant in CONTESTANTS
        },
        "models": {},
    }


def version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    sys.exit(main())
