"""Options of a rehearsal, light enough for help texts."""

from dataclasses import dataclass

from switch_ema.bench.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class RehearseOptions:
    """How to rehearse rows."""

    rehearse: bool = False
    """At the paper's scale: train a few steps of each row, evaluate a few examples,
    store and resume a checkpoint, print time and memory, and exit. Rows without data
    get generated files."""
    max_steps: int = 3
    """Rehearsed steps, in the first epoch and in the last."""
    max_eval: int = 8
    """Examples per rehearsed evaluation."""
    rehearse_batch: int | None = None
    """Examples per rehearsed step; default: the row's batch, or 2 on a CPU."""
    rehearse_side: int | None = None
    """Height and width of rehearsed images; default: the row's. With smaller ones no
    time is estimated."""

    def __post_init__(self) -> None:
        for name, least in (("max_steps", 1), ("max_eval", 2)):
            if getattr(self, name) < least:
                raise UsageError(
                    f"{name} must be at least {least}, got {getattr(self, name)}."
                )
        for name in ("rehearse_batch", "rehearse_side"):
            given, least = getattr(self, name), 2 if name == "rehearse_batch" else 8
            if given is not None and given < least:
                raise UsageError(f"{name} must be at least {least}, got {given}.")
