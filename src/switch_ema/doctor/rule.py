"""Checks that an average between two checkpoints follows the rule of an EMA."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from statistics import median

import torch
from torch import Tensor

from switch_ema.doctor.estimate import DecayEstimate, estimate, pool, scale
from switch_ema.doctor.findings import Finding, found

_INITIAL, _MOSTLY = 0.2, 0.5
"""Shares of the initial weights above which an average is not yet one: if the declared
decay is in force, and otherwise. A uniform average looks like an EMA with 37% of them.
"""
_WARM_UP = 12
"""Time constants since the start up to which a warm-up explains a faster average: the
usual one, (1 + t) / (10 + t), has 9."""
_FEWEST = 64
"""Numbers that a tensor needs for an estimate of its own."""
_OTHER = 2.0
"""Factor from the declared time constant that counts as another one."""

_BEFORE = torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64)
_AFTER = torch.tensor([-1.0, 1.0, 1.0], dtype=torch.float64)
"""L - S at both checkpoints, as sums of M, L - S and D."""


@dataclass
class RuleChecks:
    """The decay of an average: its sign, size and evenness."""

    grams: Mapping[str, Tensor]
    """Inner products of the movements of each trained tensor; see ``estimate``."""
    sizes: Mapping[str, int]
    """How many numbers each of them has."""
    steps: int | None
    """Updates between the checkpoints."""
    total: int | None
    """Updates up to the second checkpoint."""
    declared: float | None
    """The declared decay."""
    switches: bool = False
    """Whether the live weights become the average now and then."""
    is_rounded: bool = False
    """Whether the average is in half precision, so that it moves by rounding, too."""

    @cached_property
    def pooled(self) -> DecayEstimate:
        """The estimate of all tensors together."""
        return pool(list(self.grams.values()))

    @property
    def decay_in_force(self) -> float | None:
        """The estimated decay, if it can be told."""
        if not (self.steps and self.pooled.is_bounded):
            return None
        return self.pooled.decay(self.steps)

    def findings(self) -> list[Finding]:
        """Run the checks in order; the first ones explain the later ones."""
        for check in (self._exchanged, self._away, self._inverted, self._unrelated):
            if result := check():
                return result
        if not self.pooled.is_decisive:
            return []
        return self._other() + self._initial()

    def _exchanged(self) -> list[Finding]:
        scaled = [scale(gram) for gram in self.grams.values()]
        share = median(float(gram[0, 0]) for gram in scaled)
        if share < 0.4 or self.switches:
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
        if swapped.fit < max(0.5, self.pooled.fit + 0.2):
            return []
        text = (
            f"a decay explains {max(self.pooled.fit, 0):.0%} of the stored average's "
            f"movement, and {swapped.fit:.0%} of that of the live weights"
        )
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
    def _lags(self) -> tuple[float, float]:
        """Distances from the average to the live weights, in units of their drift."""
        lags = []
        for towards in (_BEFORE, _AFTER):
            totals = [gram.sum(0) for gram in self.grams.values()]
            squares = [
                float(towards @ each @ towards) / float(each[2, 2]) for each in totals
            ]
            lags.append(math.sqrt(max(median(squares), 0.0)))
        return lags[0], lags[1]

    def _unrelated(self) -> list[Finding]:
        """Values that keep away from the live weights and follow no decay."""
        _, lag = self._lags
        if self.switches or self.is_rounded or lag < 2 or self.pooled.fit > 0.7:
            return []  # far behind, a true average moves straight towards them
        text = (
            f"{lag:.1f} times the live weights' own movement away from them; a "
            f"decay explains {max(self.pooled.fit, 0):.0%} of its movement"
        )
        return [found("not an average", text)]

    def _inverted(self) -> list[Finding]:
        """An average that lags behind by less than a step follows at once."""
        if not self.steps or self.steps < 8 or self.switches:
            return []
        # Both: at the end of training, learning rates near 0 make the lag small, too.
        steps = max(self._lags) * self.steps
        if steps > 0.7:
            return []
        text = f"it lags {steps:.2g} steps behind the live weights"
        if self.declared is not None:
            lag = 1 / (1 - self.declared)
            text += f"; the declared decay {self.declared:g} lags {lag:.0f}"
        return [found("inverted decay", text)]

    def tensor_speeds(self) -> dict[str, tuple[float, float]]:
        """Return how fast each tensor is among the others.

        As the logarithm of the factor, and its standard error.
        """
        own = {
            name: estimate(gram)
            for name, gram in self.grams.items()
            if self.sizes[name] >= _FEWEST
        }
        usual = median(each.x for each in own.values()) if own else 0.0
        return {
            name: (math.log(each.ratio_to(usual)), each.log_error)
            for name, each in own.items()
            if each.is_decisive and usual
        }

    @property
    def _expected(self) -> float | None:
        """Time constants between the checkpoints by the declared decay."""
        if self.declared is None or not self.steps or not 0 < self.declared < 1:
            return None
        return -self.steps * math.log(self.declared)

    def _other(self) -> list[Finding]:
        expected = self._expected
        if expected is None or not self.pooled.differs_from(expected, _OTHER):
            return []
        assert self.steps and self.declared is not None
        since_start = self.pooled.x * (self.total or math.inf) / self.steps
        if self.pooled.x > expected and since_start < _WARM_UP:
            return []
        bound = "" if self.pooled.is_bounded else "at most "
        text = (
            f"{bound}{self.pooled.decay(self.steps):.6g} in force, {self.declared:g} "
            f"declared; as if there were {self.pooled.x / expected:.2g} updates per "
            "step"
        )
        return [found("other decay", text)]

    def _initial(self) -> list[Finding]:
        total, steps = self.total, self.steps
        if total is None or not steps:
            return []
        rate = self.pooled.x / steps
        share = math.exp(-rate * total)
        expected = self._expected
        is_known = expected and not self.pooled.differs_from(expected, _OTHER)
        if share < (_INITIAL if is_known else _MOSTLY):
            return []
        until = math.ceil(3 / rate)
        text = (
            f"{share:.0%} of it after {total} updates; less than 5% from update "
            f"{until} on"
        )
        return [found("initial weights", text)]
