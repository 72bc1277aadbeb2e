"""Builds the section of any table or figure from stored rows."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from switch_ema._extras import needed
from switch_ema.bench.errors import UsageError
from switch_ema.bench.report.sections import AnalysisSection
from switch_ema.bench.results.folder import RESULTS
from switch_ema.bench.text import listed
from switch_ema.paper.reproduce.collect import StoredRows
from switch_ema.paper.reproduce.plan import row_folder, table_folder
from switch_ema.paper.show.ablation_section import ablation_section
from switch_ema.paper.show.figures.figure import Draw, DrawnRun, PaperFigure
from switch_ema.paper.show.gains import contrasts_of
from switch_ema.paper.show.table_section import (
    expected_by_chance,
    headline,
    reproduction_section,
)
from switch_ema.paper.tables.ablations import Ablation
from switch_ema.paper.tables.properties import PropertyTable
from switch_ema.paper.tables.table import PaperTable


def part_section(
    table: PaperTable, stored: StoredRows, command: str
) -> AnalysisSection:
    """Build the section of a table or figure; pictures go to its folder.

    Args:
        table: the table or figure.
        stored: the rows of all tables.
        command: the command that reproduces the section.
    """
    out, scale = stored.out, stored.scale
    folder = table_folder(out, table, scale)
    if isinstance(table, PaperFigure):
        return _figure_section(table, out, scale, command)
    if isinstance(table, PropertyTable):
        with needed(None, extra="analysis", user="Table 1", error=UsageError):
            from switch_ema.paper.show.property_section import property_section

            return property_section(table, out, scale, command)
    rows = stored.of(table)
    if isinstance(table, Ablation):
        with needed(None, extra="analysis", user="An ablation", error=UsageError):
            section = ablation_section(
                table, rows, scale=scale, command=command, folder=folder
            )
    else:
        section = reproduction_section(table, rows, scale=scale, command=command)
    notes = [*section.paragraphs, *stored.problems(table)]
    return replace(section, paragraphs=notes)


def overall(tables: Iterable[PaperTable], stored: StoredRows) -> str:
    """Count over all tables how often Switch EMA won and lost; empty without rows."""
    contrasts = [
        contrast
        for table in tables
        if type(table) is PaperTable  # ablations and figures compare other things
        for row in stored.of(table)
        for contrast in contrasts_of(row)
    ]
    counts = headline(contrasts)
    if not counts:
        return ""
    direct = [c for c in contrasts if (c.method, c.over) == ("switch-ema", "ema")]
    rows = sum(contrast.decides for contrast in direct)
    return (
        f"All tables together, by primary metric. {counts} {expected_by_chance(rows)}"
    )


def _figure_section(
    figure: PaperFigure, out: Path, scale: str, command: str
) -> AnalysisSection:
    folders = {row.name: row_folder(out, figure, row, scale) for row in figure.rows}
    there = [row for row in figure.rows if (folders[row.name] / RESULTS).is_file()]
    missing = [row.name for row in figure.rows if row not in there]
    section = AnalysisSection(
        key=figure.name,
        title=f"{figure.name.replace('-', ' ').capitalize()}: {figure.title}",
        command=command,
    )
    notes = [figure.small_note] if figure.small_note and scale == "small" else []
    if missing:
        notes.append(f"Not trained: {listed(missing)}.")
    runs = [DrawnRun(row.title, folders[row.name], row) for row in there]
    if runs:
        folder = table_folder(out, figure, scale)
        try:
            section = draw_section(section, figure.draw, runs, (), folder)
        except (
            UsageError
        ) as error:  # one failure must not hide the other parts of a page
            notes.append(f"Not drawn: {error}")
    return replace(section, paragraphs=[*notes, *section.paragraphs])


def draw_section(
    section: AnalysisSection,
    draw: Draw,
    runs: Sequence[DrawnRun],
    methods: tuple[str, ...],
    folder: Path,
) -> AnalysisSection:
    """Draw runs and add the pictures and captions to the section."""
    with needed(None, extra="bench,analysis", user="A figure", error=UsageError):
        drawing = draw(runs, methods, folder)
    return replace(
        section,
        paragraphs=drawing.paragraphs,
        sheets=drawing.sheets,
        pictures=drawing.pictures,
    )
