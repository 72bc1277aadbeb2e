"""`switch-ema reproduce`: our results next to the paper's tables."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro
from rich.console import Console
from rich.markup import escape

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
            from switch_ema.commands.reproduce_list import print_paper

            for table in tables:
                print_paper(table, self.rows, console)
        elif self.show is not None:
            from switch_ema.commands.reproduce_list import print_recipes

            print_recipes(self, tables, self.show, console)
        elif self.write_docs is not None:
            from switch_ema.commands.reproduce_tables import write_docs

            write_docs(self, tables, self.write_docs, console)
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
    from switch_ema.commands.reproduce_plan import print_plan
    from switch_ema.commands.reproduce_tables import show_table, verdicts_as_json
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
    print_plan(flags, plans, console)
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
            show_table(table, stored, console)
        if flags.format == "json":
            print(verdicts_as_json(tables, stored), end="")


def _publish_rows(plans: Sequence["RowPlan"], evidence: Path, console: Console) -> None:
    """Publish the rows with a finished training."""
    from switch_ema.bench.results.folder import RESULTS

    for plan in plans:
        if (plan.folder / RESULTS).is_file():
            publish_run(plan.folder, evidence, console)


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
