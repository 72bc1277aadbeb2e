"""Memory of tensors on the CPU, from the allocator's own record.

The profiler is told of every allocation and release, temporaries inside kernels
included, which neither the resident set (the allocator keeps freed pages) nor a
count of the tensors that Python can see would show.
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

# The profiler's library writes a line at each start and stop; only errors matter.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")


@dataclass(frozen=True)
class Memory:
    """Memory beside the model, as multiples of the model's own bytes."""

    peak: float
    """At most, from construction to the second update."""
    held: float
    """Kept after that."""
    averaged: float | None
    """At most on top of that, while the average is shown; None: no such call."""


def measure(contestant: Contestant, model: nn.Module) -> Memory:
    """Set a contestant to work on a copy of the model and watch the allocator."""
    kept: list[Any] = []

    def run() -> None:
        # The copy is made under watch too, so that memory which a contestant moves
        # out of the model is seen to be released.
        own = copy.deepcopy(model)
        entry = contestant.build(own)
        kept.extend((own, entry))
        entry.update()
        entry.update()  # The first is a mere copy for some.

    unit = size(model)
    peak, held = watch(run)
    entry = kept[1]
    averaged = None
    if entry.averaged is not None:
        averaged = watch(entry.averaged)[0] / unit
    return Memory(peak / unit - 1, held / unit - 1, averaged)


def check(model: nn.Module) -> None:
    """Raise unless a copy of the model is seen as just its bytes."""
    kept: list[nn.Module] = []
    peak, held = watch(lambda: kept.append(copy.deepcopy(model)))
    for seen in (peak, held):
        if abs(seen / size(model) - 1) > 0.001:
            raise RuntimeError(
                f"A copy of {size(model)} bytes was seen as {seen} bytes; "
                "the memory figures would mean nothing."
            )


def watch(action: Callable[[], object]) -> tuple[int, int]:
    """Return the highest and the last level of memory, from 0 at the start."""
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
