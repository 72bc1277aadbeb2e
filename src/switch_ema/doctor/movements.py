"""How the weights moved between two checkpoints, tensor by tensor."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from switch_ema.doctor.estimate import products
from switch_ema.doctor.holdings import is_statistic
from switch_ema.doctor.reading import Leaf, sample
from switch_ema.doctor.snapshots import AveragePair

_SAMPLE = 1 << 16
"""Numbers of each tensor that are read."""
_STILL = 1e-5
"""Relative movement up to which live weights count as not trained."""
_HALF = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Movement:
    """One tensor in two consecutive checkpoints."""

    name: str
    is_statistic: bool
    is_finite: bool
    """Whether the second checkpoint has finite values only."""
    is_equal: bool
    """Whether average and live tensor of the second checkpoint are equal."""
    is_trained: bool
    """Whether the live tensor moved; a bias before batch norm does not."""
    has_moved: bool
    """Whether the average moved."""
    size: int
    """How many numbers were compared."""
    gram: Tensor
    """Inner products of both movements; see ``estimate``."""
    is_half: bool = False
    """Whether the average is kept in half precision."""
    due: int = 0
    """Numbers of a half-precision average that are far from the live ones."""
    unchanged: int = 0
    """Those of them that did not change."""


def measure_movements(snapshots: Sequence[AveragePair]) -> list[list[Movement]]:
    """Return the movements between consecutive checkpoints.

    Every tensor is read once, and no two tensors at the same time.
    """
    intervals: list[list[Movement]] = [[] for _ in snapshots[1:]]
    for name in dict.fromkeys(name for each in snapshots for name in each.average):
        before: tuple[Tensor, Tensor] | None = None
        for index, (first, second) in enumerate(pairwise(snapshots)):
            if not _is_common(name, first, second):
                before = None
                continue
            start = before or _samples(first, name)
            before = end = _samples(second, name)
            dtype = second.average[name].info.dtype
            intervals[index].append(_compare(name, dtype, start, end))
    return intervals


def _is_common(name: str, first: AveragePair, second: AveragePair) -> bool:
    """Whether all four state dicts have a floating-point tensor, with one shape."""
    held = list(_leaves(name, first, second))
    return (
        len(held) == 4
        and len({leaf.info.shape for leaf in held}) == 1
        and held[0].info.dtype.is_floating_point
        and held[0].info.elements > 0
    )


def _leaves(name: str, *snapshots: AveragePair) -> Iterator[Leaf]:
    for each in snapshots:
        yield from (held[name] for held in (each.average, each.live) if name in held)


def _samples(snapshot: AveragePair, name: str) -> tuple[Tensor, Tensor]:
    """Read the average and the live tensor."""
    average, live = snapshot.average[name], snapshot.live[name]
    return sample(average, _SAMPLE), sample(live, _SAMPLE)


def _compare(
    name: str,
    dtype: torch.dtype,
    start: tuple[Tensor, Tensor],
    end: tuple[Tensor, Tensor],
) -> Movement:
    (old, before), (new, after) = start, end
    moved, drift = new - old, after - before
    unit = torch.finfo(dtype).eps
    due = unchanged = 0
    is_half = dtype in _HALF
    if is_half:
        is_due = (before - old).abs() > 2 * unit * old.abs()
        due = int(is_due.sum())
        unchanged = int((is_due & (moved == 0)).sum())
    return Movement(
        name,
        is_statistic(name),
        is_finite=bool(torch.isfinite(new).all() and torch.isfinite(after).all()),
        is_equal=not ((new - after).abs() > 4 * unit * after.abs()).any(),
        is_trained=float(drift.norm()) > _STILL * float(before.norm()),
        has_moved=bool(moved.any()),
        size=moved.numel(),
        gram=products(moved, before - old, drift),
        is_half=is_half,
        due=due,
        unchanged=unchanged,
    )
