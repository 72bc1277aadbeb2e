"""Time of merging checkpoints on disk, against `cp`, and its memory.

    python benchmarks/merge.py [--model gpt] [--checkpoints 10] [--folder /tmp]

Writes checkpoints of a model with random weights to a temporary folder and merges them
in a separate process. Interleaved with it: `cp` of all checkpoints, which reads and
writes them, and the minimum work of a merge: read all and write one. Files are in the
page cache if they fit. The merge and the minimum wait until their output is on disk;
`cp` does not, and its output is synced, untimed, before the next run.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import models
import records
import torch
from rich.console import Console
from rich.table import Table
from safetensors.torch import save_file

from switch_ema import merge_checkpoints

MERGE = "merge"
COPY = "cp of all"
LEAST = "read all, write one"


def measured_merge(paths: list[Path], out: Path) -> dict[str, float]:
    """Merge in a separate process and measure its memory."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here on
    before, began = memory("VmRSS"), time.perf_counter()
    merge_checkpoints(paths, out)
    seconds = time.perf_counter() - began
    return {"seconds": seconds, "peak_bytes": memory("VmHWM") - before}


def memory(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(n.split()[1]) * 1024 for n in lines if n.startswith(field))


def write_checkpoints(model: str, count: int, folder: Path) -> list[Path]:
    """Write different checkpoints, one after the other."""
    tensors = dict(models.build(model).named_parameters())
    paths = []
    for i in range(count):
        paths.append(folder / f"step-{i}.safetensors")
        torch.manual_seed(i)
        save_file({name: torch.randn_like(p) for name, p in tensors.items()}, paths[-1])
    return paths


def merge(paths: list[Path], out: Path) -> dict[str, float]:
    # Spawned: a fork of a process in which torch has threads may crash.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(measured_merge, paths, out).result()


def copy(paths: list[Path], out: Path) -> dict[str, float]:
    out.mkdir()
    return timed(["cp", *map(str, paths), str(out)])


def read_and_write_one(paths: list[Path], out: Path) -> dict[str, float]:
    script = 'cat "$@" >/dev/null; cp "$1" "$0"; sync "$0"'
    return timed(["sh", "-c", script, str(out), *map(str, paths)])


def timed(command: list[str]) -> dict[str, float]:
    began = time.perf_counter()
    subprocess.run(command, check=True)
    return {"seconds": time.perf_counter() - began}


CASES: dict[str, Callable[[list[Path], Path], dict[str, float]]] = {
    MERGE: merge,
    COPY: copy,
    LEAST: read_and_write_one,
}


def measure(paths: list[Path], repeats: int) -> dict[str, list[dict[str, float]]]:
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in CASES}
    names = list(CASES)
    for repeat in range(repeats + 1):
        for name in names if repeat % 2 else names[::-1]:
            out = paths[0].parent / "result.safetensors"
            measured = CASES[name](paths, out)
            os.sync()
            shutil.rmtree(out) if out.is_dir() else out.unlink()
            out.with_suffix(".merge.json").unlink(missing_ok=True)
            if repeat:  # the first fills the caches
                runs[name].append(measured)
    return runs


def summarize(runs: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    def ratio(other: str) -> float:
        pairs = zip(runs[MERGE], runs[other], strict=True)
        return statistics.median(a["seconds"] / b["seconds"] for a, b in pairs)

    return {
        "seconds": {
            name: statistics.median(one["seconds"] for one in found)
            for name, found in runs.items()
        },
        "of_cp": ratio(COPY),
        "of_the_least": ratio(LEAST),
        "peak_bytes": max(one["peak_bytes"] for one in runs[MERGE]),
    }


def show(results: dict[str, Any], console: Console) -> None:
    table = Table("", "seconds", "the merge against it")
    ratios = {COPY: results["of_cp"], LEAST: results["of_the_least"]}
    for name, seconds in results["seconds"].items():
        ratio = f"{ratios[name]:.2f}" if name in ratios else ""
        table.add_row(name, f"{seconds:.2f}", ratio)
    console.print(table)
    mega = {
        name: f"{results[name] / 1e6:.0f} MB"
        for name in ("bytes", "largest_tensor_bytes", "peak_bytes")
    }
    console.print(
        f"{results['checkpoints']} checkpoints of {mega['bytes']}, the largest tensor "
        f"{mega['largest_tensor_bytes']}; the merge took {mega['peak_bytes']} of "
        "memory."
    )
    console.print(records.conditions(results))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", choices=list(models.MODELS), default="gpt")
    parser.add_argument("--checkpoints", type=int, default=10)
    parser.add_argument("--folder", type=Path, help="where the checkpoints are written")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, default=records.RESULTS / "merge.json")
    arguments = parser.parse_args()
    results = records.describe_run()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        needed = (
            2.5 * arguments.checkpoints * models.size(models.build(arguments.model))
        )
        if shutil.disk_usage(folder).free < needed:
            parser.error(f"{folder} has less than {needed / 1e9:.0f} GB of free space.")
        paths = write_checkpoints(arguments.model, arguments.checkpoints, Path(folder))
        results |= {
            "checkpoints": len(paths),
            "bytes": paths[0].stat().st_size,
            "largest_tensor_bytes": max(
                p.numel() * p.element_size()
                for p in models.build(arguments.model).parameters()
            ),
            "repeats": arguments.repeats,
        }
        results |= summarize(measure(paths, arguments.repeats))
    records.write(results, arguments.json)
    show(results, Console(width=120))


if __name__ == "__main__":
    main()
