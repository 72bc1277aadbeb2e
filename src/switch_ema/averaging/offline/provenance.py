"""Where weights come from, as texts in the header of a safetensors file.

Every file of weights that this package writes has these texts: which weights they are,
the method and its counters, the source, and the versions. ``switch-ema inspect`` shows
them.
"""

import subprocess
from collections.abc import Mapping
from typing import Any

import torch

from switch_ema import __version__

PREFIX = "switch_ema."
"""Begins every key, so that the texts of other writers are kept apart."""


def provenance(
    weights: str, facts: Mapping[str, Any] | None = None, **more: Any
) -> dict[str, str]:
    """Return the header of weights.

    Args:
        weights: ``average``, ``live`` or ``merge``.
        facts: what is known about them, such as ``method``, ``decay`` and ``steps``;
            None values are left out.
        more: further facts, such as ``source``.

    >>> provenance("average", {"decay": 0.99, "steps": None})["switch_ema.decay"]
    '0.99'
    """
    known = {"weights": weights, **(facts or {}), **more}
    known |= {"version": __version__, "torch": torch.__version__}
    texts = {
        PREFIX + name: str(fact) for name, fact in known.items() if fact is not None
    }
    return {"format": "pt"} | texts


def without_prefix(header: Mapping[str, str]) -> dict[str, str]:
    """Return our texts of a header by their plain names."""
    return {
        name.removeprefix(PREFIX): text
        for name, text in header.items()
        if name.startswith(PREFIX)
    }


def current_commit() -> str | None:
    """Return the git commit of the current folder, marked if it has changes."""
    try:
        commit, changes = (
            subprocess.run(
                ("git", *arguments), capture_output=True, text=True, timeout=10
            ).stdout.strip()
            for arguments in (("rev-parse", "HEAD"), ("status", "--porcelain"))
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{commit[:12]}{' with changes' if changes else ''}" if commit else None
