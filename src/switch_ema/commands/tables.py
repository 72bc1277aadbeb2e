"""Tables that fit a terminal of 80 columns."""

import textwrap

from rich.box import SIMPLE_HEAD
from rich.console import JustifyMethod
from rich.markup import escape
from rich.table import Table


def narrow_table(title: str) -> Table:
    """Create a table without column separators."""
    return Table(
        title=escape(title),
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
    )


def add_column(table: Table, name: str, *, number: bool) -> None:
    """Add a column; headings of numbers wrap, the numbers never do."""
    heading = escape(textwrap.fill(name, 7, break_long_words=False) if number else name)
    justify: JustifyMethod = "right" if number else "left"
    table.add_column(heading, justify=justify, no_wrap=number)
