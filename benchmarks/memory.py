"""Memory of CPU tensors, as recorded by the allocator.

The profiler sees every allocation and release, including temporaries inside kernels.
The resident set size (the allocator keeps freed pages) and a count of Python's tensors
would both miss those.
"""

import copy
import gc
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from models import size
from peers import Contestant
from torch import nn
from torch.profiler import ProfilerActivity, profile

# The profiler's library logs a line at each start and stop; show errors only.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")


@dataclass(frozen=True)
class Memory:
    """Memory besides the model, as multiples of the model's bytes."""

    peak: float
    """Peak from construction to the second update."""
    held: float
    """Kept after that."""
    averaged: float | None
    """Additional peak while the average is in the model; None without such a call."""


def measure(contestant: Contestant, model: nn.Module) -> Memory:
    """Run a contestant on a copy of the model and watch the allocator."""
    kept: list[Any] = []

    def run() -> None:
        # The copy is made under watch too, so that memory which a contestant moves
        # out of the model is seen to be released.
        own = copy.deepcopy(model)
        entry = contestant.build(own)
        kept.extend((own, entry))
        entry.update()
        entry.update()  # For some the first update is just a copy.

    unit = size(model)
    peak, held = watch(run)
    entry = kept[1]
    averaged = None
    if entry.averaged is not None:
        averaged = watch(entry.averaged)[0] / unit
    return Memory(peak / unit - 1, held / unit - 1, averaged)


def check(model: nn.Module) -> None:
    """Raise unless copying the model is measured as exactly its bytes."""
    kept: list[nn.Module] = []
    peak, held = watch(lambda: kept.append(copy.deepcopy(model)))
    for seen in (peak, held):
        if abs(seen / size(model) - 1) > 0.001:
            raise RuntimeError(
                f"A copy of {size(model)} bytes was measured as {seen} bytes, so "
                "the memory figures are invalid."
            )


def watch(action: Callable[[], object]) -> tuple[int, int]:
    """Return the peak and the final memory, relative to the start."""
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        action()
        gc.collect()
    events = profiler.profiler.kineto_results.events()
    records = [event for event in events if event.name() == "[memory]"]
    level = peak = 0
    for record in sorted(records, key=lambda event: event.start_ns()):
        level += record.nbytes()
        peak = max(peak, level)
    return peak, level
