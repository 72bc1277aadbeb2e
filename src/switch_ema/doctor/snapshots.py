"""A checkpoint as the doctor sees it: live weights, an average, and a counter."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from switch_ema.doctor.holdings import HeldPart, Holdings
from switch_ema.doctor.naming import name_list
from switch_ema.doctor.reading import Leaf, read
from switch_ema.doctor.recognise import inspect_checkpoint

_COUNTERS = (
    "steps",
    "num_updates",
    "optimization_step",
    "models averaged",
    "n_averaged",
    "updates",
    "step",
)
"""Facts that count updates, the most reliable first."""


@dataclass(frozen=True)
class AveragePair:
    """Live weights and average of one checkpoint, by the same names."""

    path: Path
    live: Mapping[str, Leaf]
    average: Mapping[str, Leaf]
    steps: int | None
    """Updates so far, if the file says so."""
    decay: float | None
    """The declared decay."""
    method: str | None
    """The method, if the average is ours."""

    def whole_number(self, name: str, which: str) -> float | None:
        """Return the value of a counter, or None if it is none."""
        leaf = (self.live if which == "live" else self.average).get(name)
        return float(read(leaf)) if leaf and leaf.info.elements == 1 else None


def take_snapshot(path: str | Path) -> AveragePair:
    """Find live weights and average of a checkpoint.

    Raises:
        ValueError: it does not hold exactly one of each.
    """
    holdings = inspect_checkpoint(path)
    live, average = (_only(holdings, role) for role in ("live", "average"))
    named = average.tensors
    if not average.is_named:
        named = name_list(list(average.tensors.values()), live.tensors)
    facts = average.facts
    steps = next((facts[name] for name in _COUNTERS if facts.get(name)), None)
    decay = facts.get("decay")
    return AveragePair(
        Path(path),
        live.tensors,
        named,
        None if steps is None else int(steps),
        None if decay is None else float(decay),
        facts.get("method"),
    )


def _only(holdings: Holdings, role: str) -> HeldPart:
    found = holdings.of("live" if role == "live" else "average")
    if len(found) == 1:
        return found[0]
    what = "live weights" if role == "live" else "average"
    count = f"{len(found)} of them" if found else "none"
    raise ValueError(
        f"{holdings.path} must hold live weights and one average; it has no single "
        f"{what} ({count}). switch-ema inspect shows what it holds."
    )
