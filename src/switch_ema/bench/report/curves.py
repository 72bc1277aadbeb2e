"""Data of the curves: mean and standard error per epoch, pairs per seed."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median_low, stdev

from switch_ema.bench.recipe import is_usable

Runs = Mapping[int, Sequence[float]]
"""Values per epoch, by seed."""


@dataclass(frozen=True)
class Band:
    """Mean over seeds per epoch; epochs without a finite value are omitted."""

    epochs: list[int]
    mean: list[float]
    error: list[float]
    """Standard error of the mean; 0 for a single seed."""
    n: list[int]

    def __bool__(self) -> bool:
        """Whether there is anything to plot."""
        return bool(self.epochs)


def band(runs: Runs) -> Band:
    """Average each epoch over the seeds with a finite value.

    >>> band({0: [1.0, 2.0], 1: [3.0, math.nan]})
    Band(epochs=[1, 2], mean=[2.0, 2.0], error=[1.0, 0.0], n=[2, 1])
    """
    found = Band([], [], [], [])
    for index in range(max(map(len, runs.values()), default=0)):
        values = [
            float(run[index])
            for run in runs.values()
            if index < len(run) and is_usable(run[index])
        ]
        if not values:
            continue
        n = len(values)
        found.epochs.append(index + 1)
        found.mean.append(fmean(values))
        found.error.append(stdev(values) / math.sqrt(n) if n > 1 else 0.0)
        found.n.append(n)
    return found


def visible_range(bands: Sequence[Band], baseline: Band) -> tuple[float, float] | None:
    """Choose an axis range in which the methods are distinguishable.

    The first fifth of the epochs usually spans most of the axis and would squash the
    rest into one line, as would a method that diverges. None: show everything.

    >>> slow = Band([1, 2, 3, 4, 5], [0.0, 90.0, 91.0, 92.0, 92.0], [0.0] * 5, [1] * 5)
    >>> visible_range([slow], slow)
    (89.8, 92.2)
    """
    everything = _extent(bands, share=0.0)
    late = _extent(bands, share=0.2)
    if everything is None or late is None:
        return None
    low, high = late
    own = _extent([baseline], share=0.0)
    if own is not None:  # at most as far from it as methods usually move
        extents = [extent for b in bands if (extent := _extent([b], share=0.2))]
        usual = median_low(high - low for low, high in extents)
        span = max(own[1] - own[0], usual)
        low, high = max(low, own[0] - span), min(high, own[1] + span)
    if not 0 < 2 * (high - low) < everything[1] - everything[0]:
        return None
    margin = 0.1 * (high - low)
    return round(low - margin, 12), round(high + margin, 12)


def _extent(bands: Sequence[Band], share: float) -> tuple[float, float] | None:
    """Return the limits of the bands after a share of the epochs."""
    longest = max((b.epochs[-1] for b in bands if b), default=0)
    edges = [
        mean + turn * error
        for b in bands
        for epoch, mean, error in zip(b.epochs, b.mean, b.error, strict=True)
        if epoch > share * longest
        for turn in (-1, 1)
    ]
    return (min(edges), max(edges)) if edges else None
