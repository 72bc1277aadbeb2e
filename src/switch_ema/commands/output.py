"""What commands print, with rich if it is installed and as plain text otherwise."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from textwrap import wrap
from typing import TYPE_CHECKING, Union

from switch_ema.bench.text import printable

if TYPE_CHECKING:
    from rich.console import Console

    from switch_ema.bench.report.machine import Condition
    from switch_ema.bench.stats.summary import ComparisonSummary

Advance = Callable[[int, int], object]
"""Called with the part of the work that is done, and all of it."""


class PlainConsole:
    """Stands for rich's console where rich is missing: no colours, no wrapping."""

    def print(self, text: str = "", **style: object) -> None:
        """Print a line; styles are ignored."""
        print(text)


AnyConsole = Union["Console", PlainConsole]


def open_console() -> AnyConsole:
    """Return rich's console, or the plain one."""
    try:
        from rich.console import Console
    except ModuleNotFoundError:
        return PlainConsole()
    return Console()


def exit_unless(condition: "Condition | None", summary: "ComparisonSummary") -> None:
    """End with exit code 1 and a sentence if a condition does not hold."""
    if condition is not None and (why := condition.broken_by(summary)):
        wanted = ":".join(filter(None, (condition.method, condition.name)))
        text = printable(f"switch-ema: not {wanted}: {why}.")
        print(text, file=sys.stderr)
        raise SystemExit(1)


def print_line(console: AnyConsole, text: str) -> None:
    """Print text of unknown origin as it is, without wrapping it."""
    console.print(printable(text), markup=False, highlight=False, soft_wrap=True)


def print_wrapped(console: AnyConsole, text: str, indent: str = "") -> None:
    """Print text of unknown origin in lines as wide as the terminal.

    Args:
        console: where.
        text: words are moved to the next line, never divided.
        indent: begins all lines but the first.
    """
    lines = wrap(
        printable(text),
        getattr(console, "width", 80),
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    for line in lines:
        print_line(console, line)


def print_table(
    console: AnyConsole, header: Sequence[str], rows: Sequence[Sequence[str]]
) -> None:
    """Print a table of texts of unknown origin."""
    cells = [[printable(cell) for cell in row] for row in rows]
    if isinstance(console, PlainConsole):
        lines = [list(header), *cells]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        for line in lines:
            padded = map(str.ljust, line, widths)
            console.print("  ".join(padded).rstrip())
        return
    from rich.markup import escape
    from rich.table import Table

    table = Table(*map(escape, header))
    for column in table.columns:
        column.overflow = "fold"  # what is cut off cannot be copied
    for row in cells:
        table.add_row(*map(escape, row))
    console.print(table)


@contextmanager
def show_progress(console: AnyConsole, title: str) -> Iterator[Advance]:
    """Show a bar that disappears at the end; without rich, nothing."""
    if isinstance(console, PlainConsole):
        yield lambda done, total: None
        return
    from rich.progress import Progress

    # Elsewhere than in a terminal the bar would only leave an empty line.
    hidden = not console.is_terminal
    with Progress(console=console, transient=True, disable=hidden) as progress:
        bar = progress.add_task(title)
        yield lambda done, total: progress.update(bar, completed=done, total=total)
