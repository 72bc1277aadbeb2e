"""The course of training: over-trained, still improving or flat, and best epochs.

The best epoch of a mean curve flatters its method: of 2,000 sets of 8 curves with 30
epochs of pure noise, 13% "peaked", where 1.5% are expected. So the seeds are divided
into two halves, and each half is read at the epoch in which the mean curve of the
*other* half is best. That leaves 2%, and treats all methods alike.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from switch_ema.bench.recipe import is_usable
from switch_ema.bench.stats.paired import (
    FEWEST,
    LEVEL,
    Curves,
    Difference,
    Seeds,
    finished_curves,
    head_to_head,
)

PEAKED, IMPROVING, FLAT, UNCLEAR = "peaked", "improving", "flat", "unclear"
_RECENT = 4
"""The last quarter of a training tells whether it was still improving."""


@dataclass(frozen=True)
class Course:
    """How the mean curve of a method went."""

    method: str
    state: str
    """peaked, improving, flat, or unclear: too noisy to tell."""
    epoch: int
    """Best epoch of the mean curve, counted from 1."""
    best: float
    """Mean at the best epochs, each half of the seeds at that of the other half."""
    last: float
    """Mean of the same seeds at the last epoch."""
    decline: Difference
    """From the best epoch to the last; positive if the best was better."""
    recent: Difference
    """From the beginning of the last quarter to the last epoch; positive if better."""
    window: int
    """Epochs of the last quarter."""
    is_recovering: bool
    """Whether a curve that had peaked was rising again in the last quarter."""


def course(
    curves: Curves,
    method: str,
    *,
    higher_is_better: bool,
    smallest: float,
    sequential: bool = False,
) -> Course | None:
    """Describe the course of a method's training.

    Args:
        curves: values of one metric per epoch, by method and seed.
        method: one of the methods.
        higher_is_better: direction of the metric.
        smallest: the smallest change of interest.
        sequential: whether intervals must be valid at every look.

    Returns:
        None with fewer than two seeds or evaluations.
    """
    sign = 1 if higher_is_better else -1
    own = finished_curves(curves, sign).get(method, {})
    epochs = _evaluated(own)
    if len(own) < 2 or len(epochs) < 2:
        return None
    chosen = _best_epochs(own, _halves(own))
    before, last = epochs[-1 - max(1, len(epochs) // _RECENT)], epochs[-1]
    best, start, end = (
        {seed: [curve[at[seed]]] for seed, curve in own.items()}
        for at in (chosen, dict.fromkeys(own, before), dict.fromkeys(own, last))
    )
    decline = _gain(best, end, sequential)
    recent = _gain(end, start, sequential)
    state = _state(decline, recent, smallest)
    return Course(
        method=method,
        state=state,
        epoch=_best_epoch(list(own.values()), epochs) + 1,
        best=sign * fmean(value for (value,) in best.values()),
        last=sign * fmean(value for (value,) in end.values()),
        decline=decline,
        recent=recent,
        window=last - before,
        is_recovering=state == PEAKED and _is_gain(recent, smallest),
    )


def at_best_epochs(
    curves: Curves, *, higher_is_better: bool, seed_by_seed: bool = False
) -> Curves:
    """Reduce every curve to its value at its method's best epoch.

    Each half of the seeds takes the epoch at which the mean curve of the other half is
    best. A method with a single seed has no other half, and no value.

    Args:
        curves: values of one metric per epoch, by method and seed.
        higher_is_better: direction of the metric.
        seed_by_seed: take the best value of each seed instead, which flatters curves
            that jump from epoch to epoch: often an upper bound for the baseline.

    >>> curves = {"plain": {0: [1.0, 3.0, 2.0], 1: [2.0, 5.0, 9.0]}}
    >>> at_best_epochs(curves, higher_is_better=True)
    {'plain': {0: [2.0], 1: [5.0]}}
    """
    sign = 1 if higher_is_better else -1
    kept = finished_curves(curves, sign)
    if seed_by_seed:
        return {
            method: {s: [sign * max(filter(is_usable, c))] for s, c in own.items()}
            for method, own in kept.items()
        }
    halves = _halves({seed for own in kept.values() for seed in own})
    return {
        method: {
            seed: [sign * own[seed][epoch]]
            for seed, epoch in _best_epochs(own, halves).items()
        }
        for method, own in kept.items()
    }


def _halves(seeds: Iterable[int]) -> dict[int, int]:
    """Divide the seeds into two halves, alternately."""
    return {seed: rank % 2 for rank, seed in enumerate(sorted(seeds))}


def _best_epochs(own: Seeds, halves: Mapping[int, int]) -> dict[int, int]:
    """Choose an epoch for each seed on the curves of the other half."""
    epochs = _evaluated(own)
    best = [
        _best_epoch(others, epochs)
        for half in (0, 1)
        if (others := [own[seed] for seed in own if halves[seed] != half])
    ]
    return {seed: best[halves[seed]] for seed in own} if len(best) == 2 else {}


def _evaluated(own: Seeds) -> list[int]:
    """Return the epochs, counted from 0, in which every seed has a value."""
    return [
        at
        for at, now in enumerate(zip(*own.values(), strict=True))
        if all(map(is_usable, now))
    ]


def _best_epoch(curves: Sequence[Sequence[float]], epochs: Sequence[int]) -> int:
    """Return the epoch in which the mean curve is best; the first of several."""
    means = {at: fmean(curve[at] for curve in curves) for at in epochs}
    return max(means, key=means.__getitem__)


def _gain(first: Seeds, second: Seeds, sequential: bool) -> Difference:
    found = head_to_head(
        {"first": first, "second": second},
        "first",
        "second",
        higher_is_better=True,
        sequential=sequential,
    )
    assert found is not None, "there are two seeds"
    return found


def _state(decline: Difference, recent: Difference, smallest: float) -> str:
    if _is_gain(decline, smallest):
        return PEAKED
    if _is_gain(recent, smallest):
        return IMPROVING
    both = (decline, recent)
    return FLAT if all(_is_small(change, smallest) for change in both) else UNCLEAR


def _is_gain(change: Difference, smallest: float) -> bool:
    is_found = change.n >= FEWEST and change.p_holm < LEVEL and change.mean > 0
    return is_found and not _is_small(change, smallest)


def _is_small(change: Difference, smallest: float) -> bool:
    """Whether the whole interval is smaller than the smallest change of interest."""
    ends = (change.low, change.high) if change.sd else (change.mean, change.mean)
    return max(map(abs, ends)) < smallest
