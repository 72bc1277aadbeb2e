"""Selects the epoch whose average a ``+best`` method reports, on held-out data.

The loop evaluates every epoch's average on the test data anyway. So we look up the test
value of the epoch that :class:`switch_ema.Best` would choose instead of keeping its
weights. A test checks that the two agree.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from switch_ema.averaging.best import is_clearly_worse, standard_error
from switch_ema.bench.recipe import Metric


@dataclass
class Selection:
    """Held-out and test values of one method so far, by seed."""

    metric: Metric
    """Metric that decides, in percent of the held-out examples."""
    examples: int
    """Number of held-out examples."""
    held_out: list[list[float]] = field(default_factory=list)
    """Values of the metric by epoch and seed."""
    tested: list[dict[str, list[float]]] = field(default_factory=list)
    """Test values by epoch, metric and seed."""

    def add(
        self, held_out: list[float], tested: Mapping[str, list[float]]
    ) -> dict[str, list[float]]:
        """Add an epoch's values; return the test values of each seed's chosen epoch."""
        self.held_out.append(held_out)
        self.tested.append(dict(tested))
        chosen = [self._choose(seed) for seed in range(len(held_out))]
        return {
            metric: [self.tested[epoch][metric][s] for s, epoch in enumerate(chosen)]
            for metric in tested
        }

    def _choose(self, seed: int) -> int:
        """Return the chosen epoch, counted from 0."""
        scores = [epoch[seed] / 100 for epoch in self.held_out]
        last = len(scores) - 1
        usable = [i for i, score in enumerate(scores) if not math.isnan(score)]
        if not usable:
            return last
        higher = self.metric.higher_is_better
        best = (max if higher else min)(usable, key=scores.__getitem__)
        worst_case = math.isnan(scores[last])
        error = 0.0 if worst_case else standard_error(scores[last], self.examples)
        worse = is_clearly_worse(scores[last], scores[best], error, higher)
        return best if worse else last

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"held_out": self.held_out, "tested": self.tested}

    def load(self, state: Mapping[str, Any]) -> None:
        """Load a state that :meth:`state` returned."""
        self.held_out, self.tested = list(state["held_out"]), list(state["tested"])
