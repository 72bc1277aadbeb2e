"""Colours and dashes of the methods in all figures of a page."""

from collections.abc import Sequence
from dataclasses import dataclass

from switch_ema.analysis.method_style import DASHES, method_styles
from switch_ema.bench.report.rows import baseline_of
from switch_ema.bench.stats.summary import TaskSummary

_DASHES = ((), (7, 3), (2, 3), (10, 3, 2, 3), (5, 2), (12, 3))
assert len(_DASHES) == DASHES


@dataclass(frozen=True)
class PageStyle:
    """How a method is drawn."""

    index: int
    """Index of the method in the whole comparison."""
    colour: int
    """Which of the colours --method-0, --method-1 and so on in style.css."""
    dash: tuple[int, ...]
    """Lengths of line and gap in pixels; empty is solid."""

    @property
    def plotly_dash(self) -> str:
        """The dash as plotly writes it."""
        return ",".join(f"{length}px" for length in self.dash) or "solid"

    @property
    def svg_dash(self) -> str:
        """The dash as SVG writes it."""
        return " ".join(map(str, self.dash)) or "none"


def page_styles(tasks: Sequence[TaskSummary]) -> dict[str, PageStyle]:
    """Assign each method of a comparison one style for all tasks."""
    names: dict[str, None] = {}
    for task in tasks:
        results = task.results[task.metrics[0].name]
        names |= dict.fromkeys([baseline_of(results)] if not names else [])
        names |= dict.fromkeys(result.method for result in results)
    return {
        name: PageStyle(index, style.colour, _DASHES[style.dash])
        for index, (name, style) in enumerate(method_styles(names).items())
    }
