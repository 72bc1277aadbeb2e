"""Provenance of results: package versions, machine and git commit."""

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

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
    found["cores"] = str(os.cpu_count())
    found["git"] = _git_state()
    return found


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _git_state() -> str:
    """Return the git commit of the current folder, marked if it has changes."""
    try:
        commit, changes = (
            subprocess.run(
                ["git", *arguments], capture_output=True, text=True, timeout=10
            ).stdout.strip()
            for arguments in (("rev-parse", "HEAD"), ("status", "--porcelain"))
        )
    except (OSError, subprocess.TimeoutExpired):
        return "not a git checkout"
    if not commit:
        return "not a git checkout"
    return f"{commit[:12]}{' with changes' if changes else ''}"
