"""Examines an average in two or more checkpoints of one run."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median_low

from switch_ema.doctor.checkpoint_pair import CheckpointPair
from switch_ema.doctor.findings import Finding, found
from switch_ema.doctor.movements import measure_movements
from switch_ema.doctor.snapshots import take_snapshot


@dataclass(frozen=True)
class Diagnosis:
    """The result of an examination."""

    findings: tuple[Finding, ...]
    decays: tuple[float | None, ...] = ()
    """Estimated decay in each interval; None if it could not be told."""
    unknown: tuple[str, ...] = ()
    """What could not be told, and why."""

    @property
    def exit_code(self) -> int:
        """0: healthy, 1: findings, 2: could not tell."""
        return 1 if self.findings else 2 if self.unknown and not self.decays else 0


def diagnose(
    checkpoints: Sequence[str | Path],
    *,
    decay: float | None = None,
    steps: int | None = None,
) -> Diagnosis:
    """Compare consecutive checkpoints of one run, oldest first.

    Args:
        checkpoints: two or more, each with live weights and an average.
        decay: the declared decay; None: the one in the files, if any.
        steps: updates between two checkpoints; None: from the counters in the files.

    Raises:
        ValueError: fewer than two checkpoints, or one without live weights or average.
    """
    if len(checkpoints) < 2:
        raise ValueError(
            f"doctor needs at least 2 checkpoints of one run, got {len(checkpoints)}."
        )
    snapshots = [take_snapshot(path) for path in checkpoints]
    intervals = [
        CheckpointPair(first, second, movements, decay, steps)
        for (first, second), movements in zip(
            pairwise(snapshots), measure_movements(snapshots), strict=True
        )
    ]
    findings: list[Finding] = []
    for interval in intervals:
        findings += interval.findings()
    findings += _restarts(intervals)
    unknown = [interval.unknown for interval in intervals if interval.unknown]
    decays = [interval.decay_in_force for interval in intervals]
    known = decays if any(value is not None for value in decays) else []
    return Diagnosis(tuple(_once(findings)), tuple(known), tuple(unknown))


def _once(findings: Iterable[Finding]) -> list[Finding]:
    """Keep the first finding of each kind."""
    return list(
        {finding.fault.name: finding for finding in reversed([*findings])}.values()
    )[::-1]


def _restarts(intervals: Sequence[CheckpointPair]) -> list[Finding]:
    """Compare the intervals: in one of them the average may have begun anew."""
    for interval in intervals:
        before, after = interval.first.steps, interval.second.steps
        if before is not None and after is not None and after < before:
            text = f"the counter of updates fell from {before} to {after}"
            return [found("restarted", text)]
    known = [
        (each, each.rule.pooled.x / (each.steps or 1))
        for each in intervals
        if each.rule.is_informative and each.rule.pooled.x
    ]
    if len(known) < 3 or not all(each.follows_rule for each, _ in known):
        return []
    usual = median_low(rate for _, rate in known)
    for each, rate in known[1:]:
        expected = usual * (each.steps or 1)
        if each.rule.pooled.differs_from(expected, 4.0) and rate > usual:
            return [
                found(
                    "restarted",
                    f"between {each.first.path.name} and {each.second.path.name} the "
                    f"average moved {rate / usual:.1f} times as far towards the live "
                    "weights as usual",
                )
            ]
    return []
