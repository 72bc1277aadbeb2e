"""All contestants on one model: times interleaved, then memory one by one."""

import copy
import gc
import os
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import memory
import models
import peers
from peers import FLAT, FLAT_COPY, FLAT_LAYOUT, Contestant, Entry
from timing import WARMUP, Repeats, interleave, summarize
from torch import nn

OPERATIONS = ("update", "switch", "averaged")

BUILDS = 4
"""How often to rebuild a contestant; the repeats are split between the builds.

The memory addresses of its tensors are worth a few percent for as long as it lives, so
identical contestants differ by more than their quartiles suggest.
"""

SHARE_ABOVE = 256 << 20
"""Contestants share the live weights of models of at least this size, to save memory.

A smaller shared model could stay in the cache between contestants, an advantage over
the flat ``lerp_`` and the flat layout, which have their own weights.
"""

Tick = Callable[[], None]


def measure(
    model: nn.Module, contestants: list[Contestant], repeats: int, tick: Tick
) -> dict[str, Any]:
    """Return all figures of one model for JSON; calls ``tick`` ticks() times."""
    result: dict[str, Any] = {
        "tensors": len(models.tensors(model)),
        "averaged_elements": models.averaged_elements(model),
        "bytes": models.size(model),
        "load_before": round(os.getloadavg()[0], 2),
    }
    timed = _time(model, contestants, repeats, tick)
    result["load_after"] = round(os.getloadavg()[0], 2)
    # Mean over the repeats used for the medians.
    result["busy_cores_of_others"] = {
        operation: round(runs.quieter_load(), 2) for operation, runs in timed.items()
    }
    result["operations"] = {
        operation: {name: asdict(t) for name, t in summarize(runs, FLAT).items()}
        for operation, runs in timed.items()
    }
    result["memory"] = _memory(model, contestants, tick)
    return result


def ticks(contestants: list[Contestant], repeats: int) -> int:
    """Return how often ``measure`` calls ``tick``."""
    rounds = repeats + WARMUP * len(_shares(repeats))
    return len(OPERATIONS) * rounds + len(contestants)


def _time(
    model: nn.Module, contestants: list[Contestant], repeats: int, tick: Tick
) -> dict[str, Repeats]:
    timed = {operation: Repeats() for operation in OPERATIONS}
    for build, share in enumerate(_shares(repeats)):
        # A different order makes the allocator hand out different addresses.
        entries = enter(model, contestants[build:] + contestants[:build])
        for operation, into in timed.items():
            interleave(_calls(entries, operation), share, into, tick)
        del entries
    return timed


def _shares(repeats: int) -> list[int]:
    builds = min(BUILDS, repeats)
    return [repeats // builds + (i < repeats % builds) for i in range(builds)]


def enter(model: nn.Module, contestants: list[Contestant]) -> dict[str, Entry]:
    """Start contestants, each on its own copy of the weights unless they are large."""
    sharing = models.size(model) >= SHARE_ABOVE
    entries = {}
    for contestant in contestants:
        # The flat layout moves the model's memory, so it never shares.
        shares = sharing and contestant.name != FLAT_LAYOUT
        live = model if shares else copy.deepcopy(model)
        entry = contestant.build(live)
        peers.check(contestant.name, entry, live)
        entries[contestant.name] = entry
    return entries


def _calls(
    entries: dict[str, Entry], operation: str
) -> dict[str, Callable[[], object]]:
    """Choose the contestants; one flat ``lerp_`` is always among them, as the unit."""
    calls = {FLAT: entries[FLAT].update}
    if operation == "switch" and entries[FLAT].switch is not None:
        calls[FLAT_COPY] = entries[FLAT].switch
    for name, entry in entries.items():
        call = getattr(entry, operation)
        if name != FLAT and call is not None:
            calls[name] = call
    return calls


def _memory(
    model: nn.Module, contestants: list[Contestant], tick: Tick
) -> dict[str, dict[str, object]]:
    gc.collect()
    memory.check(model)
    result = {}
    for contestant in contestants:
        if contestant.name != FLAT:
            result[contestant.name] = asdict(memory.measure(contestant, model))
        tick()
    return result
