"""Shows an analysis: tables in the terminal, everything on a page."""

from pathlib import Path
from typing import Literal

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from switch_ema.bench.report.sections import (
    FIGURES,
    AnalysisSection,
    Sheet,
    load_sections,
    save_section,
)
from switch_ema.bench.text import counted


def print_sheet(sheet: Sheet, console: Console) -> None:
    """Print one table with its caption."""
    table = Table(
        title=escape(sheet.caption),
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        show_edge=False,
    )
    for index, name in enumerate(sheet.header):
        # Wrap between words only: users retype names from the table.
        is_word = not any(" " in row[index] for row in sheet.rows)
        justify: Literal["left", "right"] = "right" if index else "left"
        table.add_column(escape(name), justify=justify, no_wrap=is_word)
    for row in sheet.rows:
        table.add_row(*map(escape, row))
    console.print(table)


def publish(
    section: AnalysisSection, folder: Path, title: str, console: Console
) -> None:
    """Store an analysis, write its page and print it."""
    from switch_ema.bench.report.page import write_analysis_page

    save_section(section, folder)
    with console.status("Writing the page"):
        page = write_analysis_page(title, load_sections(folder), folder / "report.html")
    for sheet in section.sheets:
        if sheet.is_folded:
            rows = counted(len(sheet.rows), "row")
            console.print(f"On the page: {escape(sheet.caption)} ({rows})")
        else:
            print_sheet(sheet, console)
    for sentence in section.paragraphs:
        console.print(escape(sentence))
    name_files(folder, page, console)


def name_files(folder: Path, page: Path, console: Console) -> None:
    """Print the paths of pictures and report."""
    console.print(f"Pictures: {escape(str(folder / FIGURES))}", soft_wrap=True)
    console.print(f"Report: {escape(str(page))}", soft_wrap=True)
