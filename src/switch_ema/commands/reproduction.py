"""What `switch-ema reproduce` does: it lists, trains and shows rows of the paper."""

import shlex
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Console, JustifyMethod
from rich.markup import escape
from rich.table import Table

from switch_ema._extras import needed
from switch_ema._files import write_atomically
from switch_ema.bench.errors import UsageError
from switch_ema.bench.execute.options import RunOptions
from switch_ema.bench.paper import TABLES
from switch_ema.bench.paper.ablation_section import ablation_section
from switch_ema.bench.paper.ablations import Ablation
from switch_ema.bench.paper.estimate import estimate_seconds
from switch_ema.bench.paper.reproduce import (
    RowPlan,
    collect_rows,
    damaged_rows,
    plan_rows,
    row_line,
    run_rows,
    select_rows,
    select_tables,
    table_folder,
)
from switch_ema.bench.paper.section import (
    heading,
    markdown_page,
    reproduction_section,
)
from switch_ema.bench.paper.tables import PaperTable
from switch_ema.bench.report.numbers import fixed
from switch_ema.bench.report.page import write_analysis_page, write_run_page
from switch_ema.bench.report.sections import (
    AnalysisSection,
    Sheet,
    load_sections,
    save_section,
)
from switch_ema.bench.results.folder import REPORT
from switch_ema.commands.watching import Bar

if TYPE_CHECKING:
    from switch_ema.commands.reproduce import Reproduce


def reproduce(flags: "Reproduce", console: Console) -> None:
    """Do what the flags ask for: list, write stored results, or train rows."""
    tables = select_tables(flags.tables)
    if flags.list:
        for table in tables:
            _print_paper(table, flags.rows, console)
    elif flags.write_docs is not None:
        _write_docs(flags, tables, flags.write_docs, console)
    elif not flags.tables:
        *most, last = TABLES
        raise UsageError(
            f"which table: {', '.join(most)} or {last}? --list shows their rows."
        )
    else:
        _run(flags, tables, console)


def _run(flags: "Reproduce", tables: Sequence[PaperTable], console: Console) -> None:
    plans = plan_rows(tables, flags.rows, flags.settings, flags.out)
    # The weights are not needed for a table, and of this many they take space.
    options = RunOptions(
        jobs=flags.jobs,
        executor=flags.executor,
        address=flags.address,
        device=flags.device,
        keep_checkpoints="none",
    )
    _print_plan(flags, plans, options, console)
    if flags.dry_run:
        return
    try:
        train_rows(plans, options, console)
    finally:  # also after Ctrl-C: the table of what has finished
        for table in tables:
            _show(flags, table, console)


def _print_plan(
    flags: "Reproduce", plans: Sequence[RowPlan], options: RunOptions, console: Console
) -> None:
    # An epoch on this machine tells nothing about a cluster, or the paper's scale.
    measured = flags.settings.scale == "small" and flags.executor != "ray"
    table = Table(title="Plan")
    for name in ("row", "task", "methods", "seeds", "about"):
        table.add_column(name, overflow="fold")
    total = 0.0
    with console.status("Measuring one epoch of each row") as status:
        for plan in plans:
            status.update(f"Measuring one epoch of {escape(plan.row.name)}")
            seconds = estimate_seconds(plan, options) if measured else 0.0
            total += seconds
            table.add_row(
                escape(f"{plan.table.name} {plan.row.name}"),
                escape(", ".join(plan.config.tasks)),
                escape(", ".join(plan.config.methods)),
                str(plan.config.seeds),
                _duration(seconds) if measured else "not measured",
            )
    console.print(table)
    if measured:
        console.print(
            f"About {_duration(total)} in all, from one epoch of each row or from "
            "what its trainings took before."
        )


def _section(flags: "Reproduce", table: PaperTable) -> AnalysisSection:
    scale = flags.settings.scale
    rows = collect_rows(table, flags.out, scale)
    command = ["switch-ema", "reproduce", table.name, "--scale", scale]
    if isinstance(table, Ablation):
        with needed(None, extra="analysis", user="An ablation", error=UsageError):
            section = ablation_section(
                table,
                rows,
                scale=scale,
                command=shlex.join(command),
                folder=table_folder(flags.out, table, scale),
            )
    else:
        section = reproduction_section(
            table, rows, scale=scale, command=shlex.join(command)
        )
    problems = damaged_rows(table, flags.out, scale)
    return replace(section, paragraphs=[*section.paragraphs, *problems])


def _show(flags: "Reproduce", table: PaperTable, console: Console) -> None:
    section = _section(flags, table)
    console.rule(escape(section.title), align="left")
    for sheet in section.sheets[:2]:  # what was trained stands on the page
        _print_sheet(sheet, console)
    for sentence in section.paragraphs:
        console.print(escape(sentence))
    folder = table_folder(flags.out, table, flags.settings.scale)
    folder.mkdir(parents=True, exist_ok=True)
    save_section(section, folder)
    title = f"Ours beside the paper's {table.name.replace('-', ' ')}"
    # Read back with its pictures, which are files until then.
    path = write_analysis_page(title, load_sections(folder), folder / REPORT)
    console.print(f"Report: {escape(str(path))}", soft_wrap=True)


def _write_docs(
    flags: "Reproduce", tables: Sequence[PaperTable], path: Path, console: Console
) -> None:
    sections = [_section(flags, table) for table in tables]
    command = shlex.join(["switch-ema", "reproduce", "--write-docs", str(path)])
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, markdown_page(sections, command))
    console.print(f"Written: {escape(str(path))}", soft_wrap=True)


def train_rows(plans: Sequence[RowPlan], options: RunOptions, console: Console) -> None:
    """Train row by row: each has one line of progress and one of its result."""

    def bar(number: int, plan: RowPlan) -> Bar:
        title = f"{number} of {len(plans)}: {plan.table.name} {plan.row.name}"
        return Bar(console, title)

    failed: list[tuple[str, UsageError]] = []
    for done in run_rows(plans, options, bar):
        name = done.plan.row.name
        if done.summary is not None and done.summary.tasks:
            write_run_page(done.summary, done.plan.folder)
        if done.error is not None:
            failed.append((name, done.error))
            line = f"{name} failed: {done.error}"
            console.print(escape(line), style="red", soft_wrap=True)
        elif done.summary is not None:
            line = f"{row_line(done.plan, done.summary)} ({done.seconds:.0f} s)"
            console.print(escape(line), soft_wrap=True)
    if len(plans) == len(failed) == 1:
        raise failed[0][1]
    if failed:
        raise UsageError(
            f"{len(failed)} of {len(plans)} rows could not be trained "
            f"({', '.join(name for name, _ in failed)}); the reasons are above."
        )


def _print_sheet(sheet: Sheet, console: Console) -> None:
    """Print a table that fits into 80 columns: no lines between, headings broken."""
    table = Table(
        title=escape(sheet.caption),
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
    )
    for index, name in enumerate(sheet.header):
        heading = escape(textwrap.fill(name, 7, break_long_words=False))
        justify: JustifyMethod = "right" if index else "left"
        table.add_column(heading, justify=justify, no_wrap=index > 0)
    for row in sheet.rows:
        table.add_row(*map(escape, row))
    console.print(table)


def _print_paper(table: PaperTable, patterns: Sequence[str], console: Console) -> None:
    """Print a table as the paper has it, a line for each metric of a row."""
    methods = [cell.method for cell in table.rows[0].metrics[0].values]
    title, several = f"{table.name}: {table.title}", len(table.metric_names) > 1
    if not several:
        title += f", {heading(table.rows[0].metrics[0])}"
    printed = Table("row", "in the paper", title=escape(title), title_justify="left")
    if several:
        printed.add_column("metric")
    for method in methods:
        printed.add_column(table.columns.get(method, method), justify="right")
    printed.add_column("Gains", justify="right")
    for _, row in select_rows([table], patterns):
        for one in row.metrics:
            values = (one.value(method) for method in methods)
            cells = ["-" if v is None else fixed(v, one.decimals) for v in values]
            if several:
                cells = [escape(heading(one)), *cells]
            gain = one.printed_gain
            told = "-" if gain is None else fixed(gain, one.gain_decimals, "+")
            printed.add_row(row.name, escape(row.title), *cells, told)
    console.print(printed)


def _duration(seconds: float) -> str:
    """Spell a duration roughly.

    >>> _duration(0), _duration(42.4), _duration(150), _duration(9000)
    ('done', '43 s', '3 min', '2.5 h')
    """
    if seconds <= 0:
        return "done"
    if seconds < 100:
        return f"{int(seconds) + 1} s"
    if seconds < 5400:
        return f"{-(-seconds // 60):.0f} min"
    return f"{seconds / 3600:.1f} h"
