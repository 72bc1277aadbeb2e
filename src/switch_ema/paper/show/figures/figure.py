"""Definition of a figure: rows to train, and how to draw finished runs."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from switch_ema.bench.recipe import Metric
from switch_ema.bench.report.sections import Picture, Sheet
from switch_ema.paper.tables.table import PaperMetric, PaperRow, PaperTable, values_of

METHODS = ("plain", "ema", "switch-ema")
"""What the paper draws."""


@dataclass(frozen=True)
class DrawnRun:
    """A run to draw."""

    title: str
    """Panel title; empty: the name of its task."""
    folder: Path
    row: PaperRow | None = None
    """The paper's row that it trains, if any."""

    def title_of(self, task: str, *, is_alone: bool) -> str:
        """Return the panel title of one of its tasks.

        Args:
            task: as the comparison names it.
            is_alone: whether it is the run's only task.
        """
        variant = self.row.variant_of(task) if self.row else None
        if self.title and variant:
            return f"{self.title}, {variant}"
        return self.title if self.title and is_alone else task


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """A drawn figure: files in the folder of figures, and captions."""

    paragraphs: list[str] = field(default_factory=list)
    sheets: list[Sheet] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)


Draw = Callable[[Sequence[DrawnRun], tuple[str, ...], Path], Drawing]
"""Draws runs, given methods (empty: the usual ones) and a folder."""


@dataclass(frozen=True, kw_only=True)
class FigureKind:
    """One entry of the registry."""

    name: str
    """Name in ``switch-ema figure NAME``."""
    number: str | None = None
    """Number in the paper; None: not in the paper."""
    description: str
    draw: Draw
    make: Callable[[Mapping[str, PaperTable]], PaperTable] | None = None
    """Builds the rows to train for the paper's figure, from the tables."""


@dataclass(frozen=True, kw_only=True)
class PaperFigure(PaperTable):
    """A figure of the paper with its rows."""

    draw: Draw


def shown_row(
    tables: Mapping[str, PaperTable],
    table: str,
    name: str,
    title: str,
    methods: tuple[str, ...] | None = None,
) -> PaperRow:
    """Use a row of a table in a figure.

    Without methods, the table's training is reused; with methods, the figure trains
    these methods separately.
    """
    source = next(row for row in tables[table].rows if row.name == name)
    if methods is None:
        return replace(source, title=title, home=table)
    return replace(
        source.shortened(),
        title=title,
        metrics=(nothing_printed(source.metrics[0].metric, methods),),
        baseline=methods[0],
    )


def usual_methods(known: Iterable[str], wanted: Sequence[str] = METHODS) -> list[str]:
    """Choose one label per method of the paper: without options, or the first.

    >>> usual_methods(["plain", "ema:decay=0.9", "ema", "lawa"])
    ['plain', 'ema']
    """
    labels = list(known)
    found = []
    for method in wanted:
        own = [label for label in labels if label.partition(":")[0] == method]
        found += [method] if method in own else own[:1]
    return found


def nothing_printed(metric: Metric, methods: tuple[str, ...]) -> PaperMetric:
    """Return a metric that the paper plots without printing numbers."""
    return PaperMetric(metric=metric, values=values_of(methods, "- " * len(methods)))
