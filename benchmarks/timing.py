"""Interleaved timing: every contestant sees the same machine, busy or not."""

import gc
import os
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

WARMUP = 3
"""Untimed rounds after each construction."""

Seconds = dict[str, float]


@dataclass(frozen=True)
class Timing:
    """One operation of one contestant."""

    ms: float
    """Median."""
    ratio: float
    """Median of the ratios to the reference of the same repeat."""
    quartiles: tuple[float, float]
    """Quartiles of these ratios."""


@dataclass(frozen=True)
class Repeats:
    """All times of one operation, with the load of other processes."""

    seconds: list[Seconds] = field(default_factory=list)
    """Time of each contestant, by repeat."""
    others: list[float] = field(default_factory=list)
    """Cores kept busy by other processes, by repeat."""

    def quieter(self) -> list[Seconds]:
        """Return the repeats with at most the median load.

        On busy cores a preempted thread makes the other threads of its kernel wait for
        longer than the kernel takes. Repeats are selected by load, never by time, so
        this favours no contestant.
        """
        limit = statistics.median(self.others)
        pairs = zip(self.seconds, self.others, strict=True)
        return [seconds for seconds, load in pairs if load <= limit]

    def quieter_load(self) -> float:
        """Return the mean load of the chosen repeats."""
        limit = statistics.median(self.others)
        return statistics.mean(load for load in self.others if load <= limit)


def interleave(
    calls: Mapping[str, Callable[[], object]],
    repeats: int,
    into: Repeats,
    tick: Callable[[], None],
    clock: Callable[[], float] = time.perf_counter,
) -> None:
    """Time each call once per repeat.

    The order rotates, so nobody always runs first, and reverses on every other repeat,
    so nobody always follows the same neighbour.
    """
    names = list(calls)
    gc.collect()
    gc.disable()
    try:
        for repeat in range(-WARMUP, repeats):
            first = repeat % len(names)
            order = names[first:] + names[:first]
            bystanders = Bystanders()
            seconds = dict.fromkeys(names, 0.0)
            for name in order if repeat % 2 == 0 else reversed(order):
                call = calls[name]
                began = clock()
                call()
                seconds[name] = clock() - began
            if repeat >= 0:
                into.seconds.append(seconds)
                into.others.append(bystanders.cores())
            tick()
    finally:
        gc.enable()


def summarize(repeats: Repeats, reference: str) -> dict[str, Timing]:
    """Take medians, and compare with the reference repeat by repeat.

    A slow moment of the machine affects both times of a pair, so the ratio is steadier
    than the ratio of two medians.
    """
    chosen = repeats.quieter()
    result = {}
    for name in chosen[0]:
        ms = statistics.median(seconds[name] for seconds in chosen) * 1e3
        ratios = [seconds[name] / seconds[reference] for seconds in chosen]
        low, middle, high = _quartiles(ratios)
        result[name] = Timing(ms, middle, (low, high))
    return result


class Bystanders:
    """Measures how many cores other processes keep busy; 0 if unknown."""

    def __init__(self) -> None:
        self._start = _processor_seconds()

    def cores(self) -> float:
        """Return the mean since the start."""
        now = _processor_seconds()
        wall, busy, own = (b - a for a, b in zip(self._start, now, strict=True))
        return max(busy - own, 0.0) / max(wall, 1e-9)


def _processor_seconds() -> tuple[float, float, float]:
    """Return wall time, and processor times of the machine and of this process."""
    own = time.process_time()
    try:
        with open("/proc/stat") as file:
            fields = [int(field) for field in file.readline().split()[1:9]]
    except OSError:
        return time.monotonic(), own, own
    user, nice, system, _idle, _iowait, irq, softirq, steal = fields
    busy = user + nice + system + irq + softirq + steal
    return time.monotonic(), busy / os.sysconf("SC_CLK_TCK"), own


def _quartiles(values: list[float]) -> tuple[float, float, float]:
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high
