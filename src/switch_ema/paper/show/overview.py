"""All rows at one glance: EMA over plain training, and Switch EMA over its rivals."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

from switch_ema.bench.report.first_screen import course_of
from switch_ema.bench.report.numbers import NONE, fixed, gain_and_interval
from switch_ema.bench.report.sections import Sheet
from switch_ema.bench.report.verdict_text import SMALLER_RATE
from switch_ema.bench.stats.course import (
    FLAT,
    IMPROVING,
    PEAKED,
    UNCLEAR,
)
from switch_ema.bench.stats.paired import CONFIDENCE, Difference, verdict_of
from switch_ema.paper.reproduce.collect import ReproducedRow, StoredRows
from switch_ema.paper.show.gains import MeasuredMetric, measured_metrics
from switch_ema.paper.show.table_section import (
    count_verdicts,
    digits_in,
    expected_by_chance,
    surviving_share,
)
from switch_ema.paper.tables.table import PaperTable

RIVALS = {
    "ema": "Switch EMA - EMA",
    SMALLER_RATE: "Switch EMA - EMA at lr x f",
}
"""What Switch EMA is compared with, and the names of the differences."""
BEST = "best"
"""EMA, with both methods at the best epochs of their mean curves."""
_AVERAGING = "averaging"
"""EMA over plain training: what averaging does without switching."""
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

    @cached_property
    def over(self) -> Mapping[str, Difference | None]:
        """Switch EMA over each of ``RIVALS``, ``BEST`` and averaging.

        None if the row lacks one of the two methods.
        """
        return {
            **{rival: self._gain("switch-ema", rival) for rival in RIVALS},
            BEST: self._gain("switch-ema", "ema", at_best=True),
            _AVERAGING: self._gain("ema", "plain"),
        }

    def _gain(
        self, method: str, other: str, *, at_best: bool = False
    ) -> Difference | None:
        labels, metric = self.labels, self.measured.ours
        if not {method, other} <= labels.keys():
            return None
        own, base = labels[method], labels[other]
        return self.found.task.against(own, base, metric, at_best=at_best)

    @property
    def course(self) -> str:
        """How EMA's training went; empty if unknown."""
        main = self.over["ema"]
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
            if any(row.over[rival] for rival in RIVALS):
                yield row


def overview_counts(
    rows: Sequence[OverviewRow], rival: str, course: str | None = None
) -> str:
    """Count the verdicts on Switch EMA, or on EMA over plain training.

    Args:
        rows: the rows.
        rival: a key of ``OverviewRow.over``.
        course: count only rows in which EMA's training went so, such as "over-trains".
    """
    differences = [row.over[rival] for row in rows if course in (None, row.course)]
    return count_verdicts([verdict_of(d) for d in differences if d is not None])


def overview_findings(rows: Sequence[OverviewRow]) -> str:
    """Count the verdicts of all rows, and explain the terms, as Markdown."""
    parts = [
        f"EMA over plain training: {overview_counts(rows, _AVERAGING)}.",
        f"Switch EMA over EMA: {overview_counts(rows, 'ema')}.",
        *(
            f'Switch EMA over EMA, EMA\'s course "{course}": {counts}.'
            for course in _COURSES.values()
            if not (counts := overview_counts(rows, "ema", course)).endswith(" 0 rows")
        ),
        f"Both at their best epoch: {overview_counts(rows, BEST)}.",
        f"Switch EMA over EMA at lr x f: {overview_counts(rows, SMALLER_RATE)}.",
        expected_by_chance(len(rows)),
    ]
    return "\n".join([*(f"- {part}" for part in parts), "", _TERMS])


_TERMS = (
    "EMA's course: it **over-trains** if its mean curve falls from the best epoch to "
    "the last by more than the smallest effect of interest, is **still improving** if "
    "it rises by more in the last quarter, and **flat** if both changes are smaller; "
    "**unclear** if the seeds cannot tell. Best epochs are those of the mean curves on "
    "test data, among the epochs that were evaluated, each half of the seeds read at "
    "that of the other half. Course and best epochs were not planned, and describe. "
    "Networks of Tables 2 and 3 count twice, without and with augmentation. "
    "Differences are single tests, not corrected over methods."
)


def overview_sheet(rows: Sequence[OverviewRow], course: str | None = None) -> Sheet:
    """Tabulate the rows: how EMA's training went, and the differences.

    Args:
        rows: the rows.
        course: only rows in which EMA's training went so, such as "over-trains".
    """
    columns: dict[str, Callable[[OverviewRow], str]] = {
        "row": _name,
        "n": _seeds,
        "f": lambda row: surviving_share(row.found.task),
        "EMA - plain": partial(_over, _AVERAGING),
        "EMA's course": lambda row: row.course or NONE,
        RIVALS["ema"]: partial(_over, "ema"),
        "both at their best epoch": partial(_over, BEST),
        RIVALS[SMALLER_RATE]: partial(_over, SMALLER_RATE),
        "in the paper": _in_paper,
    }
    if course is not None:
        del columns["EMA's course"]
    return Sheet(
        caption=f"By the primary metric, with {CONFIDENCE} intervals; positive is "
        "better. f: the share of an epoch's progress that a switch keeps",
        header=[*columns],
        rows=[
            [cell(row) for cell in columns.values()]
            for row in rows
            if course in (None, row.course)
        ],
    )


def _name(row: OverviewRow) -> str:
    return f"{row.title}, {row.measured.ours.name}"


def _seeds(row: OverviewRow) -> str:
    return NONE if (main := row.over["ema"]) is None else str(main.n)


def _over(rival: str, row: OverviewRow) -> str:
    difference = row.over[rival]
    if difference is None:
        return NONE
    digits = digits_in(row.measured)
    return f"{gain_and_interval(difference, digits)}, {difference.verdict}"


def _in_paper(row: OverviewRow) -> str:
    paper = row.published()
    return NONE if paper is None else fixed(paper, row.measured.printed.decimals, "+")
