"""Checks that an average between two checkpoints follows the rule of an EMA."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from statistics import median

import torch
from torch import Tensor

from switch_ema.doctor.estimate import (
    DecayEstimate,
    estimate,
    is_bounded,
    pool,
    scale,
)
from switch_ema.doctor.findings import Finding, found

_INITIAL = 0.2
"""Share of the initial weights above which an average is not yet one."""
_UNEVEN, _OTHER = 1.5, 2.0
"""Factors between time constants that count as different: between tensors, which share
the path of the live weights, and from the declared one."""


@dataclass
class RuleChecks:
    """The decay of an average: its sign, size and evenness."""

    grams: Mapping[str, Tensor]
    """Inner products of the movements of each trained tensor; see ``estimate``."""
    method: str | None
    """The method, if the average is ours."""
    steps: int | None
    """Updates between the checkpoints."""
    total: int | None
    """Updates up to the second checkpoint."""
    declared: float | None
    """The declared decay."""

    @cached_property
    def pooled(self) -> DecayEstimate:
        """The estimate of all tensors together."""
        return pool(list(self.grams.values()))

    @property
    def is_informative(self) -> bool:
        """Whether the decay can be told from this interval."""
        return bool(self.grams) and self.pooled.fit > 0.3 and is_bounded(self.pooled.x)

    @property
    def decay_in_force(self) -> float | None:
        """The estimated decay, if it can be told."""
        if not (self.is_informative and self.steps):
            return None
        return self.pooled.decay(self.steps)

    def findings(self) -> list[Finding]:
        """Run the checks in order; the first ones explain the later ones."""
        for check in (self._exchanged, self._away, self._inverted, self._unrelated):
            if result := check():
                return result
        if not self.is_informative:
            return []
        return self._uneven() + self._other() + self._initial()

    def _exchanged(self) -> list[Finding]:
        scaled = [scale(gram) for gram in self.grams.values()]
        share = median(float(gram[0, 0]) for gram in scaled)
        if share < 0.55 or self.method is not None:
            return []
        # M, L - S, D with the roles exchanged are D, S - L, M.
        order = torch.tensor([2, 1, 0])
        sign = torch.tensor([1.0, -1.0, 1.0], dtype=torch.float64)
        swapped = pool(
            [
                gram[:, order][:, :, order] * sign[:, None] * sign
                for gram in self.grams.values()
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
        for gram in self.grams.values():
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
        for gram in self.grams.values():
            total = gram.sum(0)
            towards = torch.tensor(
                [-1.0, 1.0, 1.0], dtype=torch.float64
            )  # L + D - S - M
            left = float(towards @ total @ towards)
            lags.append(math.sqrt(max(left, 0.0) / float(total[2, 2])))
        return median(lags)

    def _unrelated(self) -> list[Finding]:
        """Values that keep away from the live weights and follow no decay."""
        if self.method is not None or self._lag < 2 or self.pooled.fit > 0.7:
            return []  # far behind, a true average moves straight towards them
        text = (
            f"{self._lag:.1f} times the live weights' own movement away from them; a "
            f"decay explains {max(self.pooled.fit, 0):.0%} of its movement"
        )
        return [found("not an average", text)]

    def _inverted(self) -> list[Finding]:
        """An average that lags behind by less than a step follows at once."""
        if not self.steps or self.steps < 8 or self.method == "switch-ema":
            return []
        typical = self._lag * self.steps
        if typical > 0.7:
            return []
        text = f"it lags {typical:.2g} steps behind the live weights"
        if self.declared is not None:
            lag = 1 / (1 - self.declared)
            text += f"; the declared decay {self.declared:g} lags {lag:.0f}"
        return [found("inverted decay", text)]

    def _uneven(self) -> list[Finding]:
        own = {name: estimate(gram) for name, gram in self.grams.items()}
        usual = median(each.x for each in own.values())
        odd = {
            name: each.x
            for name, each in own.items()
            if each.fit > 0.3 and each.differs_from(usual, _UNEVEN)
        }
        if not odd:
            return []
        name, x = next(iter(odd.items()))
        text = (
            f"{len(odd)} of {len(own)} tensors: {name} moves {x / usual:.1f} times as "
            "fast as the others"
        )
        return [found("uneven decay", text, list(odd))]

    def _other(self) -> list[Finding]:
        declared, steps = self.declared, self.steps
        if declared is None or not steps or not 0 < declared < 1:
            return []
        expected = -steps * math.log(declared)
        if not self.pooled.differs_from(expected, _OTHER):
            return []
        total = self.total
        if self.pooled.x > expected and (total is None or total * (1 - declared) < 10):
            return []  # a warm-up of the decay explains a faster average
        power = self.pooled.x / expected
        text = (
            f"{self.pooled.decay(steps):.6g} in force, {declared:g} declared; as if "
            f"there were {power:.2g} updates per step"
        )
        return [found("other decay", text)]

    def _initial(self) -> list[Finding]:
        total, steps = self.total, self.steps
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
