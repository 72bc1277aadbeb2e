"""Examines an average in two consecutive checkpoints of one run."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from switch_ema._checks import listed
from switch_ema.doctor.findings import Finding, found
from switch_ema.doctor.holdings import is_statistic
from switch_ema.doctor.movements import Movement
from switch_ema.doctor.rule import RuleChecks
from switch_ema.doctor.snapshots import AveragePair

_MOVING = {None, "ema", "switch-ema"}
"""Methods whose average follows the rule of an EMA; None is another library's."""


@dataclass
class CheckpointPair:
    """Two consecutive checkpoints, and what moved between them."""

    first: AveragePair
    second: AveragePair
    movements: Sequence[Movement]
    """Of the tensors that both have."""
    declared: float | None = None
    """The decay that the user gave."""
    given_steps: int | None = None
    unknown: str = ""
    """Why nothing can be told, after ``findings``."""
    has_rule: bool = False
    """Whether the decay can be checked, after ``findings``."""

    @property
    def _is_ema(self) -> bool:
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
    def rule(self) -> RuleChecks:
        """The checks of the decay."""
        declared = self.second.decay if self.declared is None else self.declared
        return RuleChecks(
            {each.name: each.gram for each in self._trained},
            {each.name: each.size for each in self._trained},
            self.steps,
            self.second.steps,
            declared,
            switches=self.second.method == "switch-ema",
            is_rounded=any(each.is_half for each in self._trained),
        )

    @property
    def decay_in_force(self) -> float | None:
        """The estimated decay, if it can be told."""
        return self.rule.decay_in_force if self.has_rule else None

    @property
    def _between(self) -> str:
        return f"between {self.first.path.name} and {self.second.path.name}"

    @cached_property
    def _trained(self) -> list[Movement]:
        """The parameters whose live values moved."""
        return [
            each
            for each in self.movements
            if each.is_trained and not each.is_statistic and each.is_finite
        ]

    def findings(self) -> list[Finding]:
        """Check all but the decay, in order; the first findings explain later ones."""
        if names := self._names():
            self.unknown = "too few names match"
            return names
        if bad := self._not_finite():
            return bad
        result = self._integers()
        if not self._trained:
            self.unknown = "the live weights did not move between the checkpoints"
            return result
        if equal := self._equal():
            return [*result, *equal]
        frozen = self._frozen()
        has_moved = not frozen or frozen[0].fault.name == "frozen tensors"
        self.has_rule = self._is_ema and has_moved
        if self.has_rule and not self.rule.pooled.is_decisive:
            self.unknown = "the checkpoints do not tell the decay"
        return [*result, *frozen, *self._stale()]

    def _names(self) -> list[Finding]:
        live = {
            name
            for name, leaf in self.second.live.items()
            if leaf.info.dtype.is_floating_point and not is_statistic(name)
        }
        average = set(self.second.average)
        missing, extra = sorted(live - average), sorted(average - set(self.second.live))
        if not extra and (not missing or len(missing) < len(live) / 2):
            return []
        text = f"{len(missing)} of {len(live)} parameters are not in the average"
        if extra:
            text += (
                f"; {len(extra)} names are not in the model: {listed(extra, most=2)}"
            )
        return [found("names", text, missing)]

    def _not_finite(self) -> list[Finding]:
        bad = [each.name for each in self.movements if not each.is_finite]
        if not bad:
            return []
        text = f"{len(bad)} of {len(self.movements)} tensors in {self.second.path.name}"
        return [found("not finite", text, bad)]

    def _integers(self) -> list[Finding]:
        bad = []
        for name, leaf in self.second.live.items():
            if leaf.info.dtype.is_floating_point or leaf.info.elements != 1:
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

    def _equal(self) -> list[Finding]:
        if self.second.method not in (None, "ema"):
            return []  # as after a switch, or before the first snapshot
        parameters = [each for each in self.movements if not each.is_statistic]
        if not all(each.is_equal for each in parameters):
            return []
        text = f"all {len(parameters)} tensors of {self.second.path.name}"
        return [found("equal to live", text)]

    def _frozen(self) -> list[Finding]:
        still = [each.name for each in self._trained if not each.has_moved]
        due = sum(each.due for each in self._trained)
        unchanged = sum(each.unchanged for each in self._trained)
        is_stalled = unchanged > due / 2
        if is_stalled and (len(still) < len(self._trained) or self.steps):
            text = (
                f"{unchanged / due:.0%} of the numbers that lag by more than two units "
                f"in the last place did not change {self._between}"
            )
            return [found("stalled", text)]
        if not still or not self._is_ema:  # SWA and others may wait for an epoch
            return []
        text = (
            f"{len(still)} of {len(self._trained)} tensors did not move {self._between}"
        )
        if len(still) == len(self._trained):
            return [found("frozen", text)]
        return [found("frozen tensors", text, still)]

    def _stale(self) -> list[Finding]:
        live = [
            each for each in self.movements if each.is_trained and each.is_statistic
        ]
        still = [each.name for each in live if not each.has_moved]
        if not still or not any(each.has_moved for each in self._trained):
            return []
        text = (
            f"{len(still)} of {len(live)} running statistics did not move "
            f"{self._between}"
        )
        return [found("stale buffers", text, still)]
