"""`switch-ema reproduce --list` and `--show`: the paper's numbers, and recipes."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from switch_ema.bench.spec import wrappable
from switch_ema.commands.tables import add_column, narrow_table

if TYPE_CHECKING:
    from switch_ema.commands.reproduce import Reproduce
    from switch_ema.paper.tables.table import PaperTable


def print_paper(table: "PaperTable", patterns: Sequence[str], console: Console) -> None:
    """Print a table of the paper, one line per row and metric.

    Methods without a number in the paper get no column, and metrics that only we
    measure get no line.
    """
    from switch_ema.bench.report.numbers import fixed
    from switch_ema.paper.reproduce.plan import select_rows
    from switch_ema.paper.show.table_section import heading

    chosen = [
        (row, one)
        for _, row in select_rows([table], patterns)
        for one in row.metrics
        if one.is_printed or one is row.metrics[0]
    ]
    methods = [
        cell.method
        for cell in table.rows[0].metrics[0].values
        if any(one.value(cell.method) is not None for _, one in chosen)
    ]
    has_gains = any(one.printed_gain is not None for _, one in chosen)
    title = f"{table.name}: {table.title}"
    several = len({one.metric.name for _, one in chosen}) > 1
    if not several:
        title += f", {heading(table.rows[0].metrics[0])}"
    printed = narrow_table(title)
    # Row names are typed by users: never truncate them.
    printed.add_column("row", no_wrap=True)
    add_column(printed, "in the paper", number=False)
    if several:
        add_column(printed, "metric", number=False)
    for name in [table.columns.get(method, method) for method in methods]:
        add_column(printed, name, number=True)
    if has_gains:
        add_column(printed, "Gains", number=True)
    for row, one in chosen:
        cells = [escape(heading(one))] if several else []
        for method in methods:
            value = one.value(method)
            cells.append("-" if value is None else fixed(value, one.decimals))
        if has_gains:
            gain = one.printed_gain
            cells.append("-" if gain is None else fixed(gain, one.gain_decimals, "+"))
        printed.add_row(row.name, escape(row.title), *cells)
    console.print(printed)
    console.print()


def print_recipes(
    flags: "Reproduce", tables: Sequence["PaperTable"], pattern: str, console: Console
) -> None:
    """Print the recipes of the rows that match."""
    from switch_ema.paper.reproduce.plan import plan_rows
    from switch_ema.paper.show.recipe import row_recipe

    for plan in plan_rows(tables, (pattern,), flags.settings, flags.run.out):
        title = f"{plan.table.name} {plan.row.name}: {plan.row.title}"
        printed = Table(title=escape(title), title_justify="left", show_header=False)
        printed.add_column(overflow="fold")
        printed.add_column(overflow="fold")
        for name, text in row_recipe(plan):
            printed.add_row(escape(name), escape(wrappable(text)))
        console.print(printed)
