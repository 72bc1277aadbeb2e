"""Examines an average in two or more checkpoints of one run."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from statistics import median, median_low

import torch
from torch import Tensor

from switch_ema._checks import listed
from switch_ema.doctor.estimate import (
    DecayEstimate,
    estimate,
    is_bounded,
    pool,
    products,
    scale,
)
from switch_ema.doctor.findings import Finding, found
from switch_ema.doctor.snapshots import STATISTICS, AveragePair, take_snapshot

_MOVING = {None, "ema", "switch-ema"}
"""Methods whose average follows the rule of an EMA; None is another library's."""
_INITIAL = 0.2
"""Share of the initial weights above which an average is not yet one."""
_STILL = 1e-5
"""Relative movement up to which live weights count as not trained."""
_HALF = (torch.bfloat16, torch.float16)
_UNEVEN, _OTHER = 1.5, 2.0
"""Factors between time constants that count as different: between tensors, which share
the path of the live weights, and from the declared one."""


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
        CheckpointPair(first, second, decay, steps)
        for first, second in pairwise(snapshots)
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


def _restarts(intervals: "Sequence[CheckpointPair]") -> list[Finding]:
    """Compare the intervals: in one of them the average may have begun anew."""
    for interval in intervals:
        before, after = interval.first.steps, interval.second.steps
        if before is not None and after is not None and after < before:
            text = f"the counter of updates fell from {before} to {after}"
            return [found("restarted", text)]
    known = [
        (each, each.pooled.x / (each.steps or 1))
        for each in intervals
        if each.is_informative and each.pooled.x
    ]
    if len(known) < 3 or not all(each.follows_rule for each, _ in known):
        return []
    usual = median_low(rate for _, rate in known)
    for each, rate in known[1:]:
        expected = usual * (each.steps or 1)
        if each.pooled.differs_from(expected, 4.0) and rate > usual:
            return [
                found(
                    "restarted",
                    f"between {each.first.path.name} and {each.second.path.name} the "
                    f"average moved {rate / usual:.1f} times as far towards the live "
                    "weights as usual",
                )
            ]
    return []


@dataclass
class CheckpointPair:
    """Two consecutive checkpoints."""

    first: AveragePair
    second: AveragePair
    declared: float | None = None
    given_steps: int | None = None
    unknown: str = ""
    _grams: dict[str, Tensor] = field(default_factory=dict)

    @property
    def follows_rule(self) -> bool:
        """Whether the average should be an EMA."""
        return self.second.method in _MOVING

    @property
    def steps(self) -> int | None:
        """Updates between the checkpoints."""
        if self.given_steps is not None:
            return self.given_steps
        before, after = self.first.steps, self.second.steps
        if before is None or after is None or after <= before:
            return None
        return after - before

    @cached_property
    def common(self) -> list[str]:
        """Floating-point tensors that all four state dicts have, with one shape."""
        return [
            name
            for name, leaf in self.second.average.items()
            if leaf.info.dtype.is_floating_point
            and all(
                name in held and held[name].info.shape == leaf.info.shape
                for held in (self.first.average, self.first.live, self.second.live)
            )
            and leaf.info.elements
        ]

    @cached_property
    def parameters(self) -> list[str]:
        """Those that are no running statistics."""
        return [name for name in self.common if not name.endswith(STATISTICS)]

    def findings(self) -> list[Finding]:
        """Run the checks in order; the first ones explain the later ones."""
        if names := self._names():
            self.unknown = "too few names match"
            return names
        if bad := self._not_finite():
            return bad
        moved = self._movements()
        result = self._integers()
        if not moved.live:
            self.unknown = "the live weights did not move between the checkpoints"
            return result
        if equal := self._equal():
            return [*result, *equal]
        result += self._frozen(moved) + self._stale(moved)
        if any(finding.fault.name in ("frozen", "stalled") for finding in result):
            return result
        if not self.follows_rule:
            return result
        return result + self._rule()

    def _names(self) -> list[Finding]:
        live = {
            name
            for name, leaf in self.second.live.items()
            if leaf.info.dtype.is_floating_point and not name.endswith(STATISTICS)
        }
        average = set(self.second.average)
        missing, extra = sorted(live - average), sorted(average - set(self.second.live))
        if len(missing) < len(live) / 2 and not extra:
            return []
        if not missing and not extra:
            return []
        text = f"{len(missing)} of {len(live)} parameters are not in the average"
        if extra:
            text += (
                f"; {len(extra)} names are not in the model: {listed(extra, most=2)}"
            )
        return [found("names", text, missing)]

    def _not_finite(self) -> list[Finding]:
        bad = []
        for name in self.common:
            for which in ("average", "live"):
                if not torch.isfinite(self.second.sample(name, which)).all():
                    bad.append(name)
                    break
        if not bad:
            return []
        text = f"{len(bad)} of {len(self.common)} tensors in {self.second.path.name}"
        return [found("not finite", text, bad)]

    def _integers(self) -> list[Finding]:
        bad = []
        for name, leaf in self.second.live.items():
            if leaf.info.dtype.is_floating_point or name not in self.second.average:
                continue
            if name not in self.first.average or leaf.info.elements != 1:
                continue
            old = self.first.whole_number(name, "average")
            new = self.second.whole_number(name, "average")
            live = self.second.whole_number(name, "live")
            if old is None or new is None or live is None:
                continue
            if old < new < live - 1 or new != int(new):
                bad.append((name, new, live))
        if not bad:
            return []
        name, new, live = bad[0]
        text = f"{name} is {new:g} in the average and {live:g} in the model"
        return [found("averaged integers", text, [each[0] for each in bad])]

    def _movements(self) -> "_Movements":
        result = _Movements()
        for name in self.common:
            old, new = (
                each.sample(name, "average") for each in (self.first, self.second)
            )
            before, after = (
                each.sample(name, "live") for each in (self.first, self.second)
            )
            drift, moved = after - before, new - old
            if float(drift.norm()) <= _STILL * float(before.norm()):
                continue  # not trained, as a bias before batch norm
            is_statistic = name.endswith(STATISTICS)
            (result.live_statistics if is_statistic else result.live).append(name)
            if not moved.any():
                (result.still_statistics if is_statistic else result.still).append(name)
            if not is_statistic:
                self._grams[name] = products(moved, before - old, drift)
                result.count_stalled(
                    self.second.average[name].info.dtype, moved, before, old
                )
        return result

    def _equal(self) -> list[Finding]:
        if self.second.method == "switch-ema":
            return []  # as after every switch
        for name in self.parameters:
            average, live = (self.second.sample(name, w) for w in ("average", "live"))
            unit = torch.finfo(self.second.average[name].info.dtype).eps
            if ((average - live).abs() > 4 * unit * live.abs()).any():
                return []
        text = f"all {len(self.parameters)} tensors of {self.second.path.name}"
        return [found("equal to live", text)]

    def _frozen(self, moved: "_Movements") -> list[Finding]:
        if moved.is_stalled and (len(moved.still) < len(moved.live) or self.steps):
            text = (
                f"{moved.unchanged:.0%} of the numbers that are more than two units in "
                "the last place off did not change"
            )
            return [found("stalled", text)]
        if not moved.still:
            return []
        text = f"{len(moved.still)} of {len(moved.live)} tensors did not move"
        if len(moved.still) == len(moved.live):
            return [found("frozen", text)]
        return [found("frozen tensors", text, moved.still)]

    def _stale(self, moved: "_Movements") -> list[Finding]:
        if not moved.still_statistics or len(moved.still) == len(moved.live):
            return []
        count, all_of = len(moved.still_statistics), len(moved.live_statistics)
        text = f"{count} of {all_of} running statistics did not move"
        return [found("stale buffers", text, moved.still_statistics)]

    @cached_property
    def pooled(self) -> DecayEstimate:
        """The estimate of all tensors together."""
        return pool(list(self._grams.values()))

    @property
    def is_informative(self) -> bool:
        """Whether the decay can be told from this interval."""
        return bool(self._grams) and self.pooled.fit > 0.3 and is_bounded(self.pooled.x)

    @property
    def decay_in_force(self) -> float | None:
        """The estimated decay, if it can be told."""
        if not (self.follows_rule and self.is_informative and self.steps):
            return None
        return self.pooled.decay(self.steps)

    def _rule(self) -> list[Finding]:
        """Check the decay: its sign, size, evenness, and the declared one."""
        if exchanged := self._exchanged():
            return exchanged
        if away := self._away():
            return away
        if inverted := self._inverted():
            return inverted
        if unrelated := self._unrelated():
            return unrelated
        if not self.is_informative:
            self.unknown = "the checkpoints do not tell the decay"
            return []
        return self._uneven() + self._other() + self._initial()

    def _exchanged(self) -> list[Finding]:
        scaled = [scale(gram) for gram in self._grams.values()]
        share = median(float(gram[0, 0]) for gram in scaled)
        if share < 0.55 or self.second.method is not None:
            return []
        # M, L - S, D with the roles exchanged are D, S - L, M.
        order = torch.tensor([2, 1, 0])
        sign = torch.tensor([1.0, -1.0, 1.0], dtype=torch.float64)
        swapped = pool(
            [
                gram[:, order][:, :, order] * sign[:, None] * sign
                for gram in self._grams.values()
            ]
        )
        if swapped.fit < 0.3 or swapped.fit < self.pooled.fit + 0.1:
            return []
        ratio = math.sqrt(share / (1 - share))
        text = f"the stored average moved {ratio:.1f} times as far as the live weights"
        return [found("exchanged", text)]

    def _away(self) -> list[Finding]:
        """Compare M with L + D - S, the way to the new live weights."""
        cosines = []
        for gram in self._grams.values():
            total = gram.sum(0)
            along = float(total[0, 1] + total[0, 2])
            target = float(total[1, 1] + total[2, 2] + 2 * total[1, 2])
            size = math.sqrt(float(total[0, 0]) * target)
            cosines.append(along / size if size else 0.0)
        typical = median(cosines)
        if typical > -0.3:
            return []
        text = f"cosine {typical:.2f} between its movement and the way to the live ones"
        return [found("moving away", text)]

    @cached_property
    def _lag(self) -> float:
        """Distance from the average to the live weights, in units of their drift."""
        lags = []
        for gram in self._grams.values():
            total = gram.sum(0)
            towards = torch.tensor(
                [-1.0, 1.0, 1.0], dtype=torch.float64
            )  # L + D - S - M
            left = float(towards @ total @ towards)
            lags.append(math.sqrt(max(left, 0.0) / float(total[2, 2])))
        return median(lags)

    def _unrelated(self) -> list[Finding]:
        """Values that keep away from the live weights and follow no decay."""
        if self.second.method is not None or self._lag < 2 or self.pooled.fit > 0.7:
            return []  # far behind, a true average moves straight towards them
        text = (
            f"{self._lag:.1f} times the live weights' own movement away from them; a "
            f"decay explains {max(self.pooled.fit, 0):.0%} of its movement"
        )
        return [found("not an average", text)]

    def _inverted(self) -> list[Finding]:
        """An average that lags behind by less than a step follows at once."""
        if not self.steps or self.steps < 8 or self.second.method == "switch-ema":
            return []
        typical = self._lag * self.steps
        if typical > 0.7:
            return []
        text = f"it lags {typical:.2g} steps behind the live weights"
        declared = self._declared()
        if declared is not None:
            text += f"; the declared decay {declared:g} lags {1 / (1 - declared):.0f}"
        return [found("inverted decay", text)]

    def _declared(self) -> float | None:
        return self.declared if self.declared is not None else self.second.decay

    def _uneven(self) -> list[Finding]:
        odd = {}
        for name, gram in self._grams.items():
            own = estimate(gram)
            if own.fit > 0.3 and own.differs_from(self._usual(), _UNEVEN):
                odd[name] = own.x
        if not odd:
            return []
        name, x = next(iter(odd.items()))
        text = (
            f"{len(odd)} of {len(self._grams)} tensors: {name} moves "
            f"{x / self._usual():.1f} times as fast as the others"
        )
        return [found("uneven decay", text, list(odd))]

    def _usual(self) -> float:
        """Return the median of the tensors' time constants."""
        return median(estimate(gram).x for gram in self._grams.values())

    def _other(self) -> list[Finding]:
        declared, steps = self._declared(), self.steps
        if declared is None or not steps or not 0 < declared < 1:
            return []
        expected = -steps * math.log(declared)
        if not self.pooled.differs_from(expected, _OTHER):
            return []
        total = self.second.steps
        if self.pooled.x > expected and (total is None or total * (1 - declared) < 10):
            return []  # a warm-up of the decay explains a faster average
        power = self.pooled.x / expected
        text = (
            f"{self.pooled.decay(steps):.6g} in force, {declared:g} declared; as if "
            f"there were {power:.2g} updates per step"
        )
        return [found("other decay", text)]

    def _initial(self) -> list[Finding]:
        total, steps = self.second.steps, self.steps
        if total is None or not steps:
            return []
        rate = self.pooled.x / steps
        share = math.exp(-rate * total)
        if share < _INITIAL:
            return []
        until = math.ceil(3 / rate)
        text = (
            f"{share:.0%} of it after {total} updates; less than 5% from update "
            f"{until} on"
        )
        return [found("initial weights", text)]


@dataclass
class _Movements:
    """Which tensors moved."""

    live: list[str] = field(default_factory=list)
    still: list[str] = field(default_factory=list)
    """Parameters whose average did not move although the live one did."""
    live_statistics: list[str] = field(default_factory=list)
    still_statistics: list[str] = field(default_factory=list)
    _due: int = 0
    _unchanged: int = 0

    def count_stalled(
        self, dtype: torch.dtype, moved: Tensor, live: Tensor, average: Tensor
    ) -> None:
        """Count numbers of a half-precision average that should have changed."""
        if dtype not in _HALF:
            return
        unit = torch.finfo(dtype).eps * average.abs()
        due = (live - average).abs() > 2 * unit
        self._due += int(due.sum())
        self._unchanged += int((due & (moved == 0)).sum())

    @property
    def unchanged(self) -> float:
        """Share of the numbers that should have changed and did not."""
        return self._unchanged / self._due if self._due else 0.0

    @property
    def is_stalled(self) -> bool:
        """Whether most numbers of a half-precision average stand still."""
        return self._due > 0 and self.unchanged > 0.5
