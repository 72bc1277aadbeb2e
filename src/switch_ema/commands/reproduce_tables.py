"""Our results next to the paper's: in the terminal, on pages, as Markdown and JSON."""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

from switch_ema._extras import needed
from switch_ema._files import write_atomically
from switch_ema.bench.errors import UsageError
from switch_ema.commands.tables import add_column, narrow_table

if TYPE_CHECKING:
    from switch_ema.bench.report.sections import AnalysisSection, Sheet
    from switch_ema.commands.reproduce import Reproduce
    from switch_ema.paper.reproduce.collect import StoredRows
    from switch_ema.paper.tables.table import PaperTable


def _section(table: "PaperTable", stored: "StoredRows") -> "AnalysisSection":
    from switch_ema.paper.show.sections import part_section

    command = ["switch-ema", "reproduce", table.name, "--scale", stored.scale]
    return part_section(table, stored, shlex.join(command))


def show_table(table: "PaperTable", stored: "StoredRows", console: Console) -> None:
    """Print our values beside the paper's, and write the page of the table."""
    from switch_ema.paper.reproduce.plan import table_folder

    section = _section(table, stored)
    # Write the page first, in case printing fails.
    path = write_part(section, table_folder(stored.out, table, stored.scale), table)
    console.rule(escape(section.title), align="left")
    for sheet in section.sheets[:2]:  # the others are only on the page
        _print_sheet(sheet, console)
    for sentence in section.paragraphs:
        console.print(escape(sentence))
    console.print(f"Report: {escape(str(path))}", soft_wrap=True)


def write_part(section: "AnalysisSection", folder: Path, table: "PaperTable") -> Path:
    """Store the section of a table and write the page of its folder."""
    from switch_ema.bench.report.page import write_analysis_page
    from switch_ema.bench.report.sections import load_sections, save_section
    from switch_ema.bench.results.folder import REPORT

    folder.mkdir(parents=True, exist_ok=True)
    save_section(section, folder)
    title = f"Our results and the paper's {table.name.replace('-', ' ')}"
    # Loading embeds the pictures, which are files so far.
    return write_analysis_page(title, load_sections(folder), folder / REPORT)


def write_docs(
    flags: "Reproduce", tables: Sequence["PaperTable"], path: Path, console: Console
) -> None:
    """Write the published results as Markdown: a page, and one for each family."""
    from switch_ema.paper.reproduce.collect import StoredRows
    from switch_ema.paper.show.figures.figure import PaperFigure
    from switch_ema.paper.show.overview import (
        overview_findings,
        overview_rows,
        overview_sheet,
    )
    from switch_ema.paper.show.table_section import markdown_pages, markdown_table

    if path.suffix != ".md":
        raise UsageError(f"--write-docs needs the path of a .md file, got {path}.")
    stored = StoredRows(flags.run.out, flags.settings.scale, flags.files.evidence)
    # Markdown pages have no pictures.
    shown = [table for table in tables if not isinstance(table, PaperFigure)]
    families: dict[str, list[AnalysisSection]] = {}
    for table in shown:
        families.setdefault(table.family, []).append(_section(table, stored))
    command = shlex.join(["switch-ema", "reproduce", "--write-docs", str(path)])
    found = ""
    with needed(None, extra="analysis", user="--write-docs", error=UsageError):
        from switch_ema.paper.show.overview_figure import CAPTION, write_overview
    if rows := [*overview_rows(tables, stored)]:
        picture = Path("figures") / f"{path.stem}.svg"
        write_overview(rows, path.parent / picture)
        link = f"![Differences by row]({picture.as_posix()})"
        sheet = markdown_table(overview_sheet(rows))
        found = "\n\n".join([link, CAPTION, overview_findings(rows), sheet])
    for page, text in markdown_pages(families, command, found, path.stem).items():
        target = path.parent / page
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target, text)
    console.print(
        f"Written: {escape(str(path))}, and a page for each family in "
        f"{escape(str(path.with_suffix('')))}",
        soft_wrap=True,
    )


def verdicts_as_json(tables: Sequence["PaperTable"], stored: "StoredRows") -> str:
    """Return the verdicts on the stored rows as JSON; a row's name is its setting."""
    from switch_ema.bench.report.machine import as_json
    from switch_ema.bench.stats.summary import ComparisonSummary

    rows = [found for table in tables for found in stored.of(table)]
    tasks = [replace(found.task, point=found.row.name) for found in rows]
    name = ", ".join(table.name for table in tables)
    return as_json(ComparisonSummary(name, tasks, config="{}"))


def _print_sheet(sheet: "Sheet", console: Console) -> None:
    """Print a table that fits 80 columns."""
    table = narrow_table(sheet.caption)
    for index, name in enumerate(sheet.header):
        add_column(table, name, number=index > 0)
    for row in sheet.rows:
        table.add_row(*map(escape, row))
    console.print(table)
