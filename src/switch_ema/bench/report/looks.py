"""What tells methods apart: one colour and one dash each, the same in all figures."""

from collections.abc import Sequence
from dataclasses import dataclass

from switch_ema.bench.report.rows import baseline_of
from switch_ema.bench.stats.summary import TaskSummary

COLOURS = 7
"""Colours --method-0 to --method-6 in style.css; the first is the baseline's."""
_DASHES = ((), (7, 3), (2, 3), (10, 3, 2, 3), (5, 2), (12, 3))


@dataclass(frozen=True)
class Look:
    """How a method is drawn."""

    index: int
    """Number of the method in the whole comparison."""
    colour: int
    """Which of the colours in style.css."""
    dash: tuple[int, ...]
    """Lengths of line and gap in pixels; empty is solid."""

    @property
    def plotly_dash(self) -> str:
        """Spell the dash for plotly."""
        return ",".join(f"{length}px" for length in self.dash) or "solid"

    @property
    def svg_dash(self) -> str:
        """Spell the dash for SVG."""
        return " ".join(map(str, self.dash)) or "none"


def make_looks(tasks: Sequence[TaskSummary]) -> dict[str, Look]:
    """Give every method of a comparison its look, whichever tasks it appears in.

    The baseline is drawn in the colour of the text. The other colours come around
    again after six methods, with another dash.
    """
    names: dict[str, None] = {}
    for task in tasks:
        results = task.results[task.metrics[0].name]
        names |= dict.fromkeys([baseline_of(results)] if not names else [])
        names |= dict.fromkeys(result.method for result in results)
    return {name: _look(index) for index, name in enumerate(names)}


def _look(index: int) -> Look:
    """Combine colours and dashes so that 31 methods in a row look different."""
    rounds, place = divmod(max(0, index - 1), COLOURS - 1)
    colour = 1 + place if index else 0
    return Look(index, colour, _DASHES[(index + rounds) % len(_DASHES)])
