"""Interleaved timing: every contestant sees the same machine, busy or not."""

import gc
import os
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

WARMUP = 3


@dataclass(frozen=True)
class Timing:
    """One operation of one contestant."""

    ms: float
    """Median."""
    ratio: float
    """Median of the ratios to the reference of the same repeat."""
    quartiles: tuple[float, float]
    """Of these ratios."""


def interleave(
    calls: Mapping[str, Callable[[], object]],
    repeats: int,
    tick: Callable[[], None],
) -> dict[str, list[float]]:
    """Time each call once per repeat, in seconds.

    The order is rotated, so that nobody always runs first, and turned round at
    every other repeat, so that nobody always follows the same neighbour.
    """
    names = list(calls)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    gc.collect()
    gc.disable()
    try:
        for repeat in range(-WARMUP, repeats):
            first = repeat % len(names)
            order = names[first:] + names[:first]
            for name in order if repeat % 2 == 0 else reversed(order):
                call = calls[name]
                began = time.perf_counter()
                call()
                took = time.perf_counter() - began
                if repeat >= 0:
                    seconds[name].append(took)
            tick()
    finally:
        gc.enable()
    return seconds


def summarize(seconds: Mapping[str, list[float]], reference: str) -> dict[str, Timing]:
    """Take medians, and compare with the reference repeat by repeat.

    A slow moment of the machine slows both halves of such a pair, so that the ratio
    is steadier than the ratio of two medians.
    """
    result = {}
    for name, times in seconds.items():
        pairs = zip(times, seconds[reference], strict=True)
        ratios = [time / unit for time, unit in pairs]
        low, middle, high = _quartiles(ratios)
        result[name] = Timing(statistics.median(times) * 1e3, middle, (low, high))
    return result


class Bystanders:
    """Measures how many cores other processes keep busy; None where unknown."""

    def __init__(self) -> None:
        self._start = _processor_seconds()

    def cores(self) -> float | None:
        """Return the mean since the start."""
        now = _processor_seconds()
        if self._start is None or now is None:
            return None
        wall, busy, own = (b - a for a, b in zip(self._start, now, strict=True))
        return round(max(busy - own, 0.0) / max(wall, 1e-9), 2)


def _processor_seconds() -> tuple[float, float, float] | None:
    """Return wall time, and processor time of the machine and of this process."""
    try:
        with open("/proc/stat") as file:
            fields = [int(field) for field in file.readline().split()[1:9]]
    except OSError:
        return None
    user, nice, system, _idle, _iowait, irq, softirq, steal = fields
    busy = user + nice + system + irq + softirq + steal
    tick = os.sysconf("SC_CLK_TCK")
    return time.monotonic(), busy / tick, time.process_time()


def _quartiles(values: list[float]) -> tuple[float, float, float]:
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high
