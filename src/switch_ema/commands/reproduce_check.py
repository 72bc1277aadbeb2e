"""`switch-ema reproduce --check`: trains published rows again and compares."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from switch_ema.bench.errors import UsageError
from switch_ema.bench.plan.cells import make_plan
from switch_ema.bench.report.terminal import print_plan
from switch_ema.bench.results.evidence import read_evidence
from switch_ema.bench.text import counted
from switch_ema.commands.progress import Bar
from switch_ema.paper.reproduce.check import RowCheck, check_row, config_to_check
from switch_ema.paper.reproduce.plan import row_evidence, select_rows

if TYPE_CHECKING:
    from switch_ema.commands.reproduce import Reproduce
    from switch_ema.paper.tables.table import PaperTable


def check_rows(
    flags: "Reproduce", tables: Sequence["PaperTable"], console: Console
) -> None:
    """Check the rows that are published; exit with code 1 if a verdict differs."""
    evidence, scale = flags.files.evidence, flags.settings.scale
    files = {
        row_evidence(evidence, table, row, scale): f"{table.name} {row.name}"
        for table, row in select_rows(tables, flags.rows)
    }
    published = {file: name for file, name in files.items() if file.is_file()}
    if not published:
        raise UsageError(
            f"no published row of {', '.join(table.name for table in tables)} in "
            f"{evidence}; run this in a clone of the repository, or give --evidence."
        )
    seeds = flags.settings.seeds
    if flags.run.dry_run:
        configs = [config_to_check(read_evidence(f), seeds)[0] for f in published]
        print_plan([cell for c in configs for cell in make_plan(c)], console)
        return
    different = 0
    for file, name in published.items():
        bar = Bar(console, f"{name} again")
        checked = check_row(read_evidence(file), flags.run, seeds, bar)
        different += sum(not verdict.is_same for verdict in checked.verdicts)
        _print(name, checked, console)
    if different:
        console.print(f"Verdicts that differ: {different}.", style="red")
        sys.exit(1)


def _print(name: str, checked: RowCheck, console: Console) -> None:
    """Print the verdicts that decide or differ, and the values in one sentence."""
    first = {verdict.task: verdict.metric for verdict in reversed(checked.verdicts)}
    table = Table(title=escape(name), title_justify="left")
    for column in ("task", "metric", "contrast", "published", "now"):
        table.add_column(column, overflow="fold")
    for one in checked.verdicts:
        if one.metric == first[one.task] or not one.is_same:
            style = "" if one.is_same else "red"
            cells = (one.task, one.metric, one.contrast, one.published, one.now)
            table.add_row(*map(escape, cells), style=style)
    console.print(table)
    same = sum(verdict.is_same for verdict in checked.verdicts)
    total = counted(len(checked.verdicts), "verdict")
    for text in (f"{same} of {total} the same.", checked.sentence, *checked.notes):
        console.print(escape(text), soft_wrap=True)
