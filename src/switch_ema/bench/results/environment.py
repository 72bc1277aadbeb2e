"""Provenance of results: package versions, machine and git commit."""

import os
import platform
from importlib import metadata
from pathlib import Path

import torch

from switch_ema.averaging.offline.provenance import current_commit

PACKAGES = ("switch-ema", "torch", "accelerate", "timm", "scikit-learn", "numpy")


def describe_environment() -> dict[str, str]:
    """Collect versions, hardware and git state, to reproduce results."""
    found = {"python": platform.python_version(), "system": platform.platform()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    found["processor"] = _processor()
    # torch and oneDNN choose their kernels by it, and so the last digits.
    found["instructions"] = torch.backends.cpu.get_cpu_capability()
    found["cores"] = str(os.cpu_count())
    found["git"] = current_commit() or "not a git checkout"
    return found


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
