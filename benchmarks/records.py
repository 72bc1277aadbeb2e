"""Metadata of a results file, and how to write one."""

import json
import os
import platform
import re
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).parent / "results"


def describe_run() -> dict[str, Any]:
    """Return date, machine and versions of this run."""
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": {
            "cpu": _cpu_name(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "load": round(os.getloadavg()[0], 2),
        },
    }


def conditions(results: dict[str, Any]) -> str:
    """Describe the machine in a sentence."""
    machine = results["machine"]
    return (
        f"{machine['cpu']}, {machine['cores']} cores, load {machine['load']:.1f} at "
        f"the start; torch {machine['torch']}, threads per process: "
        f"{machine['threads']}; {results['date'][:10]}."
    )


def write(results: dict[str, Any], path: Path) -> None:
    """Replace the file atomically: an interrupted run never leaves half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    text = json.dumps(results, indent=2)
    # Many numbers are easier to read and to compare in one line than in one each.
    text = re.sub(r"\[[^\[\]{}\"]*\]", lambda found: " ".join(found[0].split()), text)
    partial.write_text(f"{text}\n")
    partial.replace(path)


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2] for line in lines if line.startswith("model name")]
    return names[0].strip() if names else platform.machine()
