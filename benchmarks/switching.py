"""Switches, averaged views and a short epoch in processor time, in one run.

    python benchmarks/switching.py [--models gpt many_small] [--repeats 10]

``averaging.py`` and ``training.py`` measure the same in wall time with all threads, for
an idle machine. This script is for a busy one: processor time of one thread,
contestants interleaved, every ratio within a repeat.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import contest
import models
import peers
import records
import torch
import training
from rich.console import Console
from rich.table import Table
from timing import Repeats, interleave, summarize
from torch import nn

OPERATIONS = ("switch", "averaged")
EPOCH = "mnist1d CNN, AdamW"
EPOCHS_PER_REPEAT = 4


def present() -> list[peers.Contestant]:
    """List the installed contestants that support at least one operation."""
    found = []
    for contestant in peers.CONTESTANTS:
        try:
            entry = contestant.build(nn.Linear(1, 1))
        except ImportError:
            continue
        if entry.switch is not None or entry.averaged is not None:
            found.append(contestant)
    return found


def calls_of(
    entries: dict[str, peers.Entry],
) -> dict[str, dict[str, Callable[[], object]]]:
    """Return the calls of each operation, with one flat ``lerp_`` as the unit."""
    unit = {peers.FLAT: entries[peers.FLAT].update}
    calls: dict[str, dict[str, Callable[[], object]]] = {
        o: {**unit} for o in OPERATIONS
    }
    for name, entry in entries.items():
        for operation in OPERATIONS:
            call = getattr(entry, operation)
            if call is not None and name != peers.FLAT:
                calls[operation][name] = call
    return calls


def measure(
    calls: dict[str, Callable[[], object]], reference: str, repeats: int
) -> dict[str, Any]:
    into = Repeats()
    interleave(calls, repeats, into, lambda: None, clock=time.process_time)
    return {name: asdict(t) for name, t in summarize(into, reference).items()}


def measure_model(name: str, repeats: int) -> dict[str, Any]:
    entries = contest.enter(models.build(name), present())
    calls = calls_of(entries)
    return {o: measure(calls[o], peers.FLAT, repeats) for o in OPERATIONS}


def show(results: dict[str, Any], console: Console) -> None:
    for model, operations in results["models"].items():
        table = Table(model, *OPERATIONS)
        for name in {n: None for one in operations.values() for n in one}:
            cells = [operations[o].get(name) for o in OPERATIONS]
            table.add_row(
                name,
                *(f"{t['ratio']:.2f} ({t['ms']:.2f} ms)" if t else "-" for t in cells),
            )
        console.print(table)
    for name, timing in results["epoch"].items():
        console.print(f"{EPOCH}, {name}: {timing['ratio']:.3f} ({timing['ms']:.1f} ms)")
    console.print(records.conditions(results))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    names = list(models.MODELS)
    parser.add_argument(
        "--models", nargs="+", choices=names, default=["gpt", "deit_s", "many_small"]
    )
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--json", type=Path, default=records.RESULTS / "switching.json")
    arguments = parser.parse_args()
    repeats = arguments.repeats
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        results = records.describe_run() | {"repeats": repeats}
        results["models"] = {n: measure_model(n, repeats) for n in arguments.models}
        epochs = {
            training.PLAIN: training.epoch(EPOCH, False),
            "with Switch EMA": training.epoch(EPOCH, True),
        }
        results["epoch"] = measure(epochs, training.PLAIN, EPOCHS_PER_REPEAT * repeats)
    finally:
        torch.set_num_threads(threads)
    records.write(results, arguments.json)
    show(results, Console())


if __name__ == "__main__":
    main()
