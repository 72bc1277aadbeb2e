"""Tables of a section, in the terminal."""

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from switch_ema.bench.report.sections import Sheet


def print_sheet(sheet: Sheet, console: Console) -> None:
    """Print one table with its caption."""
    table = Table(title=escape(sheet.caption), title_justify="left")
    for index, name in enumerate(sheet.header):
        table.add_column(escape(name), justify="right" if index else "left")
    for row in sheet.rows:
        table.add_row(*map(escape, row))
    console.print(table)
