"""One figure of all rows: Switch EMA over EMA and over its control, and the paper's."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from switch_ema._files import write_atomically
from switch_ema.analysis.gains.figure import Gain
from switch_ema.analysis.matplotlib_style import paper_style
from switch_ema.analysis.overview.figure import OverviewLine, draw_overview
from switch_ema.bench.stats.paired import CONFIDENCE, Difference
from switch_ema.bench.stats.verdicts import OF_BASELINE, POINTS
from switch_ema.paper.show.overview import RIVALS, OverviewRow

CAPTION = (
    "All rows, by their primary metric: Switch EMA - EMA and Switch EMA - EMA at the "
    f"learning rate times f, paired over seeds, with {CONFIDENCE} intervals; crosses "
    "are Switch EMA - EMA as printed in the paper, for its own networks and data. "
    "Differences are in multiples of the smallest effect of interest "
    f"({POINTS:g} points for metrics in %, {OF_BASELINE:.0%} of EMA's value for "
    "others), the grey band; positive is better. Filled: the interval excludes zero."
)
_PUBLISHED = "Switch EMA - EMA in the paper"


def write_overview(rows: Sequence[OverviewRow], path: Path) -> None:
    """Draw the rows as SVG."""
    lines = [
        OverviewLine(row.table.family, row.title, gains, _published(row))
        for row in rows
        if (gains := dict(_gains(row)))
    ]
    figure = draw_overview(lines, _PUBLISHED)
    path.parent.mkdir(parents=True, exist_ok=True)
    with paper_style():
        save = partial(figure.savefig, format="svg", metadata={"Date": None})
        write_atomically(path, save)


def _gains(row: OverviewRow) -> Iterator[tuple[str, Gain]]:
    for rival, name in RIVALS.items():
        difference = row.over[rival]
        if difference is not None and difference.smallest_effect:
            yield name, _in_smallest_effects(difference)


def _in_smallest_effects(difference: Difference) -> Gain:
    low, high = difference.bounds
    unit = difference.smallest_effect
    return Gain(difference.mean / unit, low / unit, high / unit)


def _published(row: OverviewRow) -> float | None:
    """Return the paper's gain over EMA in multiples of the smallest effect."""
    gain, ema = row.published(), row.measured.printed.value("ema")
    if gain is None or ema is None:
        return None
    metric = row.measured.ours
    in_points = metric.unit == "%" and metric.smallest_effect is None
    return gain / (POINTS if in_points else OF_BASELINE * abs(ema))
