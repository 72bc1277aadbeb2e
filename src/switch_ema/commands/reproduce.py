"""`switch-ema reproduce`: our results next to the paper's tables."""

import shlex
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro
from rich.box import SIMPLE_HEAD
from rich.console import Console, JustifyMethod
from rich.markup import escape
from rich.table import Table

from switch_ema._extras import needed
from switch_ema._files import write_atomically
from switch_ema.bench.errors import UsageError
from switch_ema.bench.execute.options import RunOptions
from switch_ema.bench.plan.config import MOST_SEEDS, WAITED_FOR
from switch_ema.bench.text import listed
from switch_ema.commands.publishing import (
    PublishOptions,
    publish_run,
    restore_run,
)
from switch_ema.paper.reproduce.presets import RowSettings
from switch_ema.paper.reproduce.rehearse_options import RehearseOptions

if TYPE_CHECKING:
    from switch_ema.bench.report.sections import AnalysisSection, Sheet
    from switch_ema.paper.reproduce.collect import StoredRows
    from switch_ema.paper.reproduce.plan import RowPlan
    from switch_ema.paper.tables.table import PaperTable

ALL = "all"
"""Name for every table and figure."""


@dataclass(frozen=True)
class Reproduce:
    """Reproduce the paper's tables; print ours next to the paper's.

    Small scale: a small network of the same kind on small data, minutes per row on two
    cores; compare the sign and size of the gains. Paper scale: the paper's networks,
    data and epochs, for a cluster. Repeat the command to resume; tables show all stored
    rows.

    - switch-ema reproduce --list
    - switch-ema reproduce table-3 --rows resnet18 'swin-*'
    - switch-ema reproduce table-13 figure-decay
    - switch-ema reproduce all --budget 30min
    - switch-ema reproduce table-2 --scale paper --dry-run
    - switch-ema reproduce table-2 --scale paper --rehearse
    - switch-ema reproduce table-3 --scale paper --show deit-s
    - switch-ema reproduce table-2 --scale paper --executor ray --workers-per-training 8
    - switch-ema reproduce table-3 --rows resnet18 --until-decided --publish
    - switch-ema reproduce table-3 --rows resnet18 --check
    - switch-ema reproduce --write-docs docs/results.md
    """

    tables: Annotated[
        tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="[TABLE ...]")
    ] = ()
    """Tables and figures, such as table-3; --list shows them. "all": every one, in one
    run with one page."""
    rows: tuple[str, ...] = ()
    """Rows, or patterns such as 'resnet50-*'; default: all."""
    settings: Annotated[RowSettings, tyro.conf.arg(name="")] = field(
        default_factory=RowSettings
    )
    budget: str | None = None
    """With all: time budget, such as 90s, 30min or 2h; it determines rows and seeds."""
    run: RunOptions = field(default_factory=RunOptions)
    rehearsal: Annotated[RehearseOptions, tyro.conf.arg(name="")] = field(
        default_factory=RehearseOptions
    )
    list: bool = False
    """List the rows with the paper's numbers and exit."""
    show: str | None = None
    """Print the whole recipe of this row, or of rows by a pattern, and exit: network,
    augmentation, parameter groups, schedule, decays, and what survives a switch."""
    check: bool = False
    """Train published rows again (with --seeds, only the first ones) and compare with
    the published values; exit with code 1 if a verdict differs."""
    files: Annotated[PublishOptions, tyro.conf.arg(name="")] = field(
        default_factory=PublishOptions
    )
    evaluate_only: bool = False
    """Evaluate the kept weights again and print them beside the stored values, without
    training."""
    write_docs: Path | None = None
    """Write the published results to this file as Markdown, without training. With
    --rehearse: write the table of stored rehearsals between two marks of the file."""
    format: Literal["text", "json"] = "text"
    """json: print the verdicts on the tables' rows, or what a rehearsal measured, as
    JSON, and everything else to standard error."""

    def __post_init__(self) -> None:
        if self.format == "json" and (
            self.list
            or self.show
            or self.write_docs
            or (ALL in self.tables and not self.rehearsal.rehearse)
        ):
            raise UsageError("--format json is for tables by name, such as table-3.")
        if self.run.name is not None:
            raise UsageError(
                "--name is for compare; reproduce names folders after tables and rows."
            )
        if self.rehearsal.rehearse and self.settings.scale != "paper":
            raise UsageError("--rehearse needs --scale paper.")

    def __call__(self, console: Console) -> None:
        """List or rehearse rows, write stored results, or train rows and show them."""
        from switch_ema.paper import TABLES
        from switch_ema.paper.reproduce.plan import select_tables

        if self.rehearsal.rehearse:
            from switch_ema.commands.rehearse import rehearse

            rehearse(self, console)
            return
        if ALL in self.tables and not (self.list or self.show):
            from switch_ema.commands.reproduce_all import reproduce_all

            reproduce_all(self, console)
            return
        if self.budget is not None:
            raise UsageError("--budget is for `switch-ema reproduce all`.")
        tables = select_tables([name for name in self.tables if name != ALL])
        if self.list:
            for table in tables:
                _print_paper(table, self.rows, console)
        elif self.show is not None:
            _show_recipes(self, tables, self.show, console)
        elif self.write_docs is not None:
            _write_docs(self, tables, self.write_docs, console)
        elif self.check:
            from switch_ema.commands.reproduce_check import check_rows

            check_rows(self, tables, console)
        elif not self.tables:
            *most, last = TABLES
            raise UsageError(
                f"name a table: {', '.join(most)} or {last}; --list shows their rows."
            )
        else:
            _reproduce(self, tables, console)


def _reproduce(
    flags: Reproduce, tables: Sequence["PaperTable"], console: Console
) -> None:
    """Plan the rows, train those not stored, and show the tables."""
    from switch_ema.paper.reproduce.collect import StoredRows
    from switch_ema.paper.reproduce.plan import plan_rows

    if flags.format == "json":
        console = Console(stderr=True)
    chosen = (tables, flags.rows, flags.settings, flags.run.out)
    plans = plan_rows(*chosen)
    if flags.files.publish:
        for plan in plans:
            restore_run(plan.folder, flags.files.evidence, plan.config, console)
        plans = plan_rows(*chosen)  # with the seeds of the restored rows
    if flags.evaluate_only:
        from switch_ema.commands.evaluate_only import evaluate_rows

        evaluate_rows(plans, flags.run.device, console)
        return
    _print_plan(flags, plans, console)
    if flags.settings.until_decided:
        console.print(
            f"Seeds are added until {WAITED_FOR[flags.settings.settle]} is settled, "
            f"up to {flags.settings.max_seeds}; the plan shows those so far, or of the "
            "first look."
        )
    seeds = flags.settings.seeds or MOST_SEEDS
    more = [p.row.name for p in plans if p.config.seeds > seeds and not p.table.seeds]
    if more:
        rows = f"{listed(more)} {'has' if len(more) == 1 else 'have'}"
        console.print(escape(f"{rows} more than {seeds} seeds; all of them are kept."))
    if flags.run.dry_run:
        return
    stored = StoredRows(flags.run.out, flags.settings.scale)
    try:
        train_rows(plans, flags.run, console, stored)
    finally:  # publish and show finished rows after Ctrl-C, too
        if flags.files.publish:
            _publish_rows(plans, flags.files.evidence, console)
        for table in tables:
            _show(table, stored, console)
        if flags.format == "json":
            print(_verdicts(tables, stored), end="")


def _publish_rows(plans: Sequence["RowPlan"], evidence: Path, console: Console) -> None:
    """Publish the rows with a finished training."""
    from switch_ema.bench.results.folder import RESULTS

    for plan in plans:
        if (plan.folder / RESULTS).is_file():
            publish_run(plan.folder, evidence, console)


def _show_recipes(
    flags: Reproduce, tables: Sequence["PaperTable"], pattern: str, console: Console
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
            printed.add_row(escape(name), escape(text))
        console.print(printed)


def _verdicts(tables: Sequence["PaperTable"], stored: "StoredRows") -> str:
    """Return the verdicts on the stored rows as JSON; a row's name is its setting."""
    from switch_ema.bench.report.machine import as_json
    from switch_ema.bench.stats.summary import ComparisonSummary

    rows = [found for table in tables for found in stored.of(table)]
    tasks = [replace(found.task, point=found.row.name) for found in rows]
    name = ", ".join(table.name for table in tables)
    return as_json(ComparisonSummary(name, tasks, config="{}"))


def _print_plan(flags: Reproduce, plans: Sequence["RowPlan"], console: Console) -> None:
    # An epoch on this machine does not predict a cluster or the paper's scale.
    run = flags.run
    local = run.executor in ("local", "inline") and run.workers_per_training == 1
    if flags.settings.scale == "paper" or not local:
        _print_cluster_plan(plans, run, console)
        return
    from switch_ema.bench.report.numbers import duration
    from switch_ema.paper.reproduce.estimate import declared_row_time, measure_row_time

    table = _plan_table("about")
    total = 0.0
    with console.status("Measuring one epoch of each row") as status:
        for plan in plans:
            if run.dry_run:
                seconds = declared_row_time(plan, flags.settings, run)
            else:
                status.update(f"Measuring one epoch of {escape(plan.row.name)}")
                seconds = measure_row_time(plan, run)
            total += seconds
            _add_plan(table, plan, duration(seconds))
    console.print(table)
    source = "times measured on our machine" if run.dry_run else "one epoch per row"
    console.print(
        f"About {duration(total)} in all, estimated from {source} or from earlier "
        "trainings."
    )


def _print_cluster_plan(
    plans: Sequence["RowPlan"], run: RunOptions, console: Console
) -> None:
    """Print the plan for a cluster, with costs that were measured or rehearsed."""
    from switch_ema.bench.plan.cells import make_plan
    from switch_ema.bench.train.data_parallel import check_divisible
    from switch_ema.commands.rehearse import planned_cost, print_data_check

    workers = run.workers_per_training
    table, known, refused = _plan_table("GPU-hours"), [], dict[str, None]()
    for plan in plans:
        hours, cost = planned_cost(plan, run.out)
        if hours is not None:
            known.append(hours)
        _add_plan(table, plan, cost)
        if workers > 1:
            try:
                for cell in make_plan(plan.config):
                    check_divisible(cell)
            except UsageError as error:
                refused.setdefault(str(error))
    console.print(table)
    if workers > 1:
        console.print(
            f"Each training splits its batches over {workers} workers, one GPU each if "
            "available; batches, their order and evaluation match a single worker."
        )
    for sentence in refused:
        console.print(escape(sentence), soft_wrap=True)
    total = f"{sum(known):.1f}" if len(known) == len(plans) else "unknown"
    console.print(
        f"Total GPU-hours: {total}, counted from trainings of the same row that "
        "finished on a GPU, or else from a rehearsal on one."
    )
    print_data_check(plans, console)


def _plan_table(cost: str) -> Table:
    table = Table(title="Plan")
    for name in ("row", "task", "methods", "seeds", cost):
        table.add_column(name, overflow="fold")
    return table


def _add_plan(table: Table, plan: "RowPlan", cost: str) -> None:
    table.add_row(
        escape(f"{plan.table.name} {plan.row.name}"),
        escape(", ".join(plan.config.tasks)),
        escape(", ".join(plan.config.methods)),
        str(plan.config.seeds),
        cost,
    )


def _section(table: "PaperTable", stored: "StoredRows") -> "AnalysisSection":
    from switch_ema.paper.show.sections import part_section

    command = ["switch-ema", "reproduce", table.name, "--scale", stored.scale]
    return part_section(table, stored, shlex.join(command))


def _show(table: "PaperTable", stored: "StoredRows", console: Console) -> None:
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


def _write_docs(
    flags: Reproduce, tables: Sequence["PaperTable"], path: Path, console: Console
) -> None:
    from switch_ema.paper.reproduce.collect import StoredRows
    from switch_ema.paper.show.figures.figure import PaperFigure
    from switch_ema.paper.show.sections import overall
    from switch_ema.paper.show.table_section import markdown_pages

    if path.suffix != ".md":
        raise UsageError(f"--write-docs needs the path of a .md file, got {path}.")
    stored = StoredRows(flags.run.out, flags.settings.scale, flags.files.evidence)
    # Markdown pages have no pictures.
    shown = [table for table in tables if not isinstance(table, PaperFigure)]
    families: dict[str, list[AnalysisSection]] = {}
    for table in shown:
        families.setdefault(table.family, []).append(_section(table, stored))
    command = shlex.join(["switch-ema", "reproduce", "--write-docs", str(path)])
    found = overall(tables, stored)
    with needed(None, extra="analysis", user="--write-docs", error=UsageError):
        from switch_ema.paper.show.overview_figure import CAPTION, write_overview
    picture = Path("figures") / f"{path.stem}.svg"
    if write_overview(tables, stored, path.parent / picture):
        link = f"![Differences by row]({picture.as_posix()})"
        found = f"{link}\n\n{CAPTION}\n\n{found}"
    for page, text in markdown_pages(families, command, found, path.stem).items():
        target = path.parent / page
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target, text)
    console.print(
        f"Written: {escape(str(path))}, and a page for each family in "
        f"{escape(str(path.with_suffix('')))}",
        soft_wrap=True,
    )


def train_rows(
    plans: Sequence["RowPlan"],
    options: RunOptions,
    console: Console,
    stored: "StoredRows",
) -> None:
    """Train row by row, with a progress bar and a line of results each.

    Args:
        plans: the rows.
        options: how to run them.
        console: where to print.
        stored: receives the summaries.
    """
    from switch_ema.bench.report.page import write_run_page
    from switch_ema.commands.progress import Bar
    from switch_ema.paper.reproduce.run import row_line, run_rows

    def bar(number: int, plan: "RowPlan") -> Bar:
        title = f"{number} of {len(plans)}: {plan.table.name} {plan.row.name}"
        return Bar(console, title)

    failed: list[tuple[str, UsageError]] = []
    for done in run_rows(plans, options, bar):
        name = done.plan.row.name
        if done.summary is not None:
            stored.add(done.plan, done.summary)
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


def _print_sheet(sheet: "Sheet", console: Console) -> None:
    """Print a table that fits 80 columns."""
    table = _narrow_table(sheet.caption)
    for index, name in enumerate(sheet.header):
        _add_column(table, name, number=index > 0)
    for row in sheet.rows:
        table.add_row(*map(escape, row))
    console.print(table)


def _narrow_table(title: str) -> Table:
    """Create a table without column separators."""
    return Table(
        title=escape(title),
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
    )


def _add_column(table: Table, name: str, *, number: bool) -> None:
    """Add a column; headings of numbers wrap, the numbers never do."""
    heading = escape(textwrap.fill(name, 7, break_long_words=False) if number else name)
    justify: JustifyMethod = "right" if number else "left"
    table.add_column(heading, justify=justify, no_wrap=number)


def _print_paper(
    table: "PaperTable", patterns: Sequence[str], console: Console
) -> None:
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
    printed = _narrow_table(title)
    # Row names are typed by users: never truncate them.
    printed.add_column("row", no_wrap=True)
    _add_column(printed, "in the paper", number=False)
    if several:
        _add_column(printed, "metric", number=False)
    for name in [table.columns.get(method, method) for method in methods]:
        _add_column(printed, name, number=True)
    if has_gains:
        _add_column(printed, "Gains", number=True)
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
