"""Tables for narrow terminals: one short block per row."""

from collections.abc import Sequence

from rich.console import Console
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

_ANY_WIDTH = 10_000
_FOLDED = 10
"""Minimum width of a column whose cells may wrap."""


def fits(table: Table, console: Console) -> bool:
    """Whether all columns fit, possibly with wrapped cells.

    Rich drops columns that do not fit.
    """
    foldable = [column for column in table.columns if not column.no_wrap]
    before = [column.max_width for column in foldable]
    try:
        for column in foldable:
            column.max_width = _FOLDED
        unlimited = console.options.update_width(_ANY_WIDTH)
        return Measurement.get(console, unlimited, table).maximum <= console.width
    finally:
        for column, width in zip(foldable, before, strict=True):
            column.max_width = width


def print_block(
    console: Console, name: str, facts: Sequence[tuple[str, str | Text]]
) -> None:
    """Print one row of a table: its name, and a line for each of its cells."""
    console.print(Text(name, style="bold"))
    for label, value in facts:
        line = Text(f"{label}: ").append_text(Text.assemble(value))
        console.print(Padding(line, (0, 0, 0, 2)))
