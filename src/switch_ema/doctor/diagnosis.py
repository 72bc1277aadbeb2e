"""Examines an average in two or more checkpoints of one run."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean

from switch_ema.doctor.checkpoint_pair import CheckpointPair
from switch_ema.doctor.findings import Finding, found
from switch_ema.doctor.movements import measure_movements
from switch_ema.doctor.snapshots import take_snapshot

_BEFORE_START = ("equal to live", "frozen")
"""Findings that an average has before its first update."""
_UNEVEN = 1.4
"""Factor between the speeds of tensors, which share the path of the live weights."""
_JUMP = 2.5
"""Factor between the speeds of consecutive intervals that is no accident."""


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
    found_in = [interval.findings() for interval in intervals]
    findings = [
        *_after_the_start(found_in),
        *_lasting(intervals),
        *_uneven(intervals),
        *_restarts(intervals),
    ]
    unknown = [interval.unknown for interval in intervals if interval.unknown]
    decays = [interval.decay_in_force for interval in intervals]
    known = decays if any(value is not None for value in decays) else []
    return Diagnosis(tuple(_once(findings)), tuple(known), tuple(unknown))


def _after_the_start(found_in: Sequence[list[Finding]]) -> list[Finding]:
    """Return the findings, less those of an average that begins later.

    Before its first update, an average is equal to the live weights or stands still.
    """
    has_begun = [
        not any(finding.fault.name in _BEFORE_START for finding in findings)
        for findings in found_in
    ]
    start = has_begun.index(True) if True in has_begun else 0
    return [
        finding
        for index, findings in enumerate(found_in)
        for finding in findings
        if index >= start or finding.fault.name not in _BEFORE_START
    ]


def _lasting(intervals: Sequence[CheckpointPair]) -> Iterator[Finding]:
    """Yield what most intervals say about the decay, or the last one of its start."""
    ruled = [each.rule.findings() for each in intervals if each.has_rule]
    by_name: dict[str, list[Finding]] = {}
    for findings in ruled:
        for finding in findings:
            by_name.setdefault(finding.fault.name, []).append(finding)
    for name, hits in by_name.items():
        if name == "initial weights":
            yield from (finding for finding in hits if finding in ruled[-1])
        elif len(hits) > len(ruled) / 2 and not _is_warm_up(name, intervals):
            yield hits[-1]


def _is_warm_up(name: str, intervals: Sequence[CheckpointPair]) -> bool:
    """Whether a decay that rises explains another one, in files without a counter."""
    if name != "other decay" or any(each.rule.total for each in intervals):
        return False
    ruled = [each.rule.pooled for each in intervals if each.has_rule]
    speeds = [each.ratio_to(ruled[0].x) for each in ruled]
    return ruled[0].is_unsaturated and speeds[-1] < 0.7 * speeds[0]


def _uneven(intervals: Sequence[CheckpointPair]) -> list[Finding]:
    """Name the tensors that are faster or slower than the others over all intervals."""
    speeds = [
        each.rule.tensor_speeds()
        for each in intervals
        if each.has_rule and each.rule.pooled.is_decisive
    ]
    odd = {}
    for name in speeds[0] if speeds else ():
        known = [each[name] for each in speeds if name in each]
        mean = fmean(log_ratio for log_ratio, _ in known)
        error = math.hypot(*(log_error for _, log_error in known)) / len(known)
        is_odd = abs(mean) > math.log(_UNEVEN) and abs(mean) > 4 * error
        if is_odd and len(known) == len(speeds):
            odd[name] = math.exp(mean)
    if not odd:
        return []
    name, ratio = next(iter(odd.items()))
    text = (
        f"{len(odd)} of {len(speeds[0])} large tensors: {name} moves {ratio:.1f} times "
        "as fast as the others"
    )
    return [found("uneven decay", text, list(odd))]


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
    for previous, each in pairwise(intervals):
        if not (previous.has_rule and each.has_rule):
            continue
        usual, now = previous.rule.pooled, each.rule.pooled
        if not (usual.is_decisive and now.is_decisive):
            continue
        expected = usual.x * (each.steps or 1) / (previous.steps or 1)
        ratio = now.ratio_to(expected)
        if ratio > 1 and now.differs_from(expected, _JUMP, usual.log_error):
            text = (
                f"between {each.first.path.name} and {each.second.path.name} the "
                f"average moved {ratio:.1f} times as fast towards the live weights as "
                "before"
            )
            return [found("restarted", text)]
    return []
