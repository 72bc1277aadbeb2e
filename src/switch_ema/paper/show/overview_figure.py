"""One figure of all rows: Switch EMA over EMA and over its control, and the paper's."""

from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

from switch_ema._files import write_atomically
from switch_ema.analysis.gains.figure import Gain
from switch_ema.analysis.matplotlib_style import paper_style
from switch_ema.analysis.overview.figure import OverviewLine, draw_overview
from switch_ema.bench.report.verdict_text import SMALLER_RATE
from switch_ema.bench.stats.paired import CONFIDENCE, Difference, head_to_head
from switch_ema.bench.stats.verdicts import OF_BASELINE, POINTS, smallest_effect_of
from switch_ema.paper.reproduce.collect import ReproducedRow, StoredRows
from switch_ema.paper.show.gains import MeasuredMetric, measured_metrics
from switch_ema.paper.tables.table import PaperTable

CAPTION = (
    "All rows, by their primary metric: Switch EMA - EMA and Switch EMA - EMA at the "
    f"learning rate times f, paired over seeds, with {CONFIDENCE} intervals; crosses "
    "are Switch EMA - EMA as printed in the paper, for its own networks and data. "
    "Differences are in multiples of the smallest effect of interest "
    f"({POINTS:g} points for metrics in %, {OF_BASELINE:.0%} of EMA's value for "
    "others), the grey band; positive is better. Filled: the interval excludes zero."
)
_NAMES = {"ema": "Switch EMA - EMA", SMALLER_RATE: "Switch EMA - EMA at lr x f"}
_PUBLISHED = "Switch EMA - EMA in the paper"


def write_overview(
    tables: Iterable[PaperTable], stored: StoredRows, path: Path
) -> bool:
    """Draw the rows of all tables as SVG; return whether there was one."""
    lines = [line for table in tables for line in _lines(table, stored)]
    if not lines:
        return False
    figure = draw_overview(lines, _PUBLISHED)
    path.parent.mkdir(parents=True, exist_ok=True)
    with paper_style():
        save = partial(figure.savefig, format="svg", metadata={"Date": None})
        write_atomically(path, save)
    return True


def _lines(table: PaperTable, stored: StoredRows) -> Iterator[OverviewLine]:
    if type(table) is not PaperTable:  # ablations and figures compare other things
        return
    for found in stored.of(table):
        measured = measured_metrics(found)[0]
        gains = dict(_gains(found, measured))
        if gains:
            title = f"{found.row.title} ({table.name.replace('-', ' ')})"
            paper = _published(measured)
            yield OverviewLine(table.family, title, gains, paper)


def _gains(
    found: ReproducedRow, measured: MeasuredMetric
) -> Iterator[tuple[str, Gain]]:
    curves, metric = found.task.curves[measured.ours.name], measured.ours
    labels = {label.partition(":")[0]: label for label in curves}
    for other, name in _NAMES.items():
        if not {"switch-ema", other} <= labels.keys():
            continue
        difference = head_to_head(
            curves,
            labels["switch-ema"],
            labels[other],
            higher_is_better=metric.higher_is_better,
            smallest_effect=smallest_effect_of(metric),
            sequential=found.task.sequential,
        )
        if difference is not None and difference.smallest_effect:
            yield name, _in_smallest_effects(difference)


def _in_smallest_effects(difference: Difference) -> Gain:
    low, high = difference.bounds
    unit = difference.smallest_effect
    return Gain(difference.mean / unit, low / unit, high / unit)


def _published(measured: MeasuredMetric) -> float | None:
    """Return the paper's gain over EMA in multiples of the smallest effect."""
    printed = measured.printed
    own, ema = printed.value("switch-ema"), printed.value("ema")
    if own is None or ema is None:
        return None
    gain = own - ema if printed.metric.higher_is_better else ema - own
    in_points = measured.ours.unit == "%" and measured.ours.smallest_effect is None
    return gain / (POINTS if in_points else OF_BASELINE * abs(ema))
