"""All rows at one glance: Switch EMA over EMA, and over EMA at a smaller rate."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from switch_ema.bench.report.first_screen import course_of
from switch_ema.bench.report.numbers import NONE, fixed, gain_and_interval
from switch_ema.bench.report.sections import Sheet
from switch_ema.bench.report.verdict_text import SMALLER_RATE
from switch_ema.bench.stats.course import (
    FLAT,
    IMPROVING,
    PEAKED,
    UNCLEAR,
    at_best_epochs,
)
from switch_ema.bench.stats.paired import (
    CONFIDENCE,
    Curves,
    Difference,
    head_to_head,
    verdict_of,
)
from switch_ema.bench.stats.verdicts import smallest_effect_of
from switch_ema.paper.reproduce.collect import ReproducedRow, StoredRows
from switch_ema.paper.show.gains import MeasuredMetric, measured_metrics
from switch_ema.paper.show.table_section import count_verdicts, digits_in
from switch_ema.paper.tables.table import PaperTable

RIVALS = {
    "ema": "Switch EMA - EMA",
    SMALLER_RATE: "Switch EMA - EMA at lr x f",
}
"""What Switch EMA is compared with, and the names of the differences."""
_COURSES = {
    PEAKED: "over-trains",
    IMPROVING: "still improving",
    FLAT: "flat",
    UNCLEAR: "unclear",
}


@dataclass(frozen=True)
class OverviewRow:
    """One row by the metric that decides it."""

    table: PaperTable
    found: ReproducedRow
    measured: MeasuredMetric
    labels: Mapping[str, str]
    """The compared methods with their options, by name."""

    @property
    def title(self) -> str:
        """The row and its table."""
        return f"{self.found.row.title} ({self.table.name.replace('-', ' ')})"

    @property
    def curves(self) -> Curves:
        """Values by method and seed."""
        return self.found.task.curves[self.measured.ours.name]

    def over(self, rival: str, curves: Curves | None = None) -> Difference | None:
        """Compare Switch EMA with a rival; None if the row lacks one of the two.

        Args:
            rival: a key of ``RIVALS``.
            curves: other values than the row's own, such as those at the best epochs.
        """
        if not {"switch-ema", rival} <= self.labels.keys():
            return None
        metric = self.measured.ours
        return head_to_head(
            self.curves if curves is None else curves,
            self.labels["switch-ema"],
            self.labels[rival],
            higher_is_better=metric.higher_is_better,
            smallest_effect=smallest_effect_of(metric),
            sequential=self.found.task.sequential,
        )

    def at_best_epochs(self) -> Difference | None:
        """Compare Switch EMA with EMA, both at the best epochs of their mean curves."""
        better = self.measured.ours.higher_is_better
        return self.over("ema", at_best_epochs(self.curves, higher_is_better=better))

    @property
    def course(self) -> str:
        """How EMA's training went; empty if unknown."""
        main = self.over("ema")
        if main is None:
            return ""
        own = course_of(self.found.task, self.labels["ema"], main.smallest_effect)
        return "" if own is None else _COURSES[own.state]

    def published(self) -> float | None:
        """Return the paper's gain of Switch EMA over EMA."""
        printed = self.measured.printed
        own, ema = printed.value("switch-ema"), printed.value("ema")
        if own is None or ema is None:
            return None
        return own - ema if printed.metric.higher_is_better else ema - own


def overview_rows(
    tables: Iterable[PaperTable], stored: StoredRows
) -> Iterator[OverviewRow]:
    """List the rows of all tables in which Switch EMA can be compared."""
    for table in tables:
        if type(table) is not PaperTable:  # ablations and figures compare other things
            continue
        for found in stored.of(table):
            measured = measured_metrics(found)[0]
            labels = {
                label.partition(":")[0]: label
                for label in found.task.curves[measured.ours.name]
            }
            row = OverviewRow(table, found, measured, labels)
            if any(row.over(rival) for rival in RIVALS):
                yield row


def overview_counts(
    rows: Sequence[OverviewRow], rival: str, course: str | None = None
) -> str:
    """Count the verdicts on Switch EMA.

    Args:
        rows: the rows.
        rival: the other method; "best" stands for EMA, both at their best epochs.
        course: count only rows in which EMA's training went so, such as "over-trains".
    """
    differences = [
        row.at_best_epochs() if rival == "best" else row.over(rival)
        for row in rows
        if course in (None, row.course)
    ]
    return count_verdicts([verdict_of(d) for d in differences if d is not None])


def overview_sheet(rows: Sequence[OverviewRow]) -> Sheet:
    """Tabulate the rows: how EMA's training went, and the differences."""
    return Sheet(
        caption=f"By the primary metric, with {CONFIDENCE} intervals; positive is "
        "better. EMA's course: how its training went, by the same metric",
        header=[
            "row",
            "n",
            "EMA's course",
            RIVALS["ema"],
            "both at their best epoch",
            RIVALS[SMALLER_RATE],
            "in the paper",
        ],
        rows=[[*_cells(row)] for row in rows],
    )


def _cells(row: OverviewRow) -> Iterator[str]:
    digits, metric = digits_in(row.measured), row.measured.ours
    main, control = row.over("ema"), row.over(SMALLER_RATE)
    yield f"{row.title}, {metric.name}"
    yield NONE if main is None else str(main.n)
    yield row.course or NONE
    yield from (_difference(d, digits) for d in (main, row.at_best_epochs(), control))
    paper = row.published()
    yield NONE if paper is None else fixed(paper, row.measured.printed.decimals, "+")


def _difference(difference: Difference | None, digits: int) -> str:
    if difference is None:
        return NONE
    return f"{gain_and_interval(difference, digits)}, {difference.verdict}"
