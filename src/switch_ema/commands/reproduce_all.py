"""`switch-ema reproduce all`: every table and figure on one page."""

import shlex
import time
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

from switch_ema.bench.compare import Watcher
from switch_ema.bench.errors import UsageError
from switch_ema.bench.report.numbers import duration
from switch_ema.bench.report.page import write_analysis_page, write_run_page
from switch_ema.bench.report.sections import load_sections, save_section
from switch_ema.bench.results.folder import REPORT
from switch_ema.bench.text import counted, read_duration
from switch_ema.commands.progress import TwoBars
from switch_ema.commands.reproduce import ALL
from switch_ema.commands.reproduce_tables import write_part
from switch_ema.commands.show_section import print_sheet
from switch_ema.paper import TABLES
from switch_ema.paper.reproduce.collect import StoredRows
from switch_ema.paper.reproduce.full_run import (
    FullRun,
    RowState,
    full_run_folder,
    open_full_run,
    overview_section,
    save_full_run,
    train_full_run,
)
from switch_ema.paper.reproduce.plan import RowPlan, table_folder
from switch_ema.paper.reproduce.presets import RowSettings
from switch_ema.paper.reproduce.run import RowOutcome, row_line
from switch_ema.paper.show.figures.figure import PaperFigure
from switch_ema.paper.show.sections import overall, part_section

if TYPE_CHECKING:
    from switch_ema.commands.reproduce import Reproduce


def reproduce_all(flags: "Reproduce", console: Console) -> None:
    """Train every table and figure within the budget; write one page."""
    budget = _checked(flags)
    options = flags.run
    folder = full_run_folder(options.out, flags.settings.scale)
    with console.status("Choosing rows"):
        run = open_full_run(flags.settings, budget, options, folder)
    _print_plan(run, console)
    if options.dry_run:
        return
    save_full_run(run, folder)  # a killed run resumes with the same rows
    expected = sum(row.expected for row in run.rows)
    done = sum(row.expected for row in run.rows if row.state == "done")
    stored = StoredRows(folder, flags.settings.scale)
    is_finished = False
    try:
        with TwoBars(console, expected, done) as bars:

            def watch(row: RowState, plan: RowPlan) -> Watcher:
                bars.begin(str(row), _state(run))
                return bars.watcher()

            for row, outcome in train_full_run(run, folder, options, watch):
                bars.end(row.expected, _state(run))
                if outcome is not None and outcome.summary is not None:
                    stored.add(outcome.plan, outcome.summary)
                _print_outcome(row, outcome, console)
        is_finished = True
    finally:  # write the page after Ctrl-C, too
        path = _write(flags, run, stored, console, is_finished=is_finished)
        console.print(f"Report: {escape(str(path))}", soft_wrap=True)
    failed = [str(row) for row in run.rows if row.state == "failed"]
    if failed:
        raise UsageError(
            f"{counted(len(failed), 'row')} could not be trained "
            f"({', '.join(failed)}); the reasons are above."
        )


def _checked(flags: "Reproduce") -> float | None:
    """Refuse flags that contradict each other; return the budget in seconds."""
    if flags.tables != (ALL,) or flags.rows:
        raise UsageError(
            "all includes every row of every table; do not combine it with other "
            "tables or --rows."
        )
    if flags.settings.until_decided:
        raise UsageError(
            "--until-decided is for single tables: all divides its time among the rows "
            "beforehand, which needs fixed numbers of seeds."
        )
    if flags.files.publish or flags.check:
        raise UsageError("--publish and --check are for tables by name.")
    if flags.evaluate_only:
        raise UsageError("--evaluate-only is for single tables; name one.")
    if flags.write_docs is not None:
        raise UsageError("--write-docs writes every table by default; remove all.")
    if flags.budget is None:
        return None
    if flags.settings.scale != "small":
        raise UsageError(
            "--budget needs --scale small: times on a cluster are unknown."
        )
    return read_duration(flags.budget, "budget")


def _print_plan(run: FullRun, console: Console) -> None:
    left = [row for row in run.rows if row.state == "waiting"]
    seconds = sum(row.expected for row in left)
    parts = len({row.part for row in run.rows})
    line = (
        f"{counted(len(run.rows), 'row')} of {parts} of {len(TABLES)} tables and "
        f"figures, {len(run.rows) - len(left)} of them done."
    )
    if seconds:
        line += f" About {duration(seconds)} for the rest."
    console.print(line)
    for part, names in run.left_out.items():
        line = f"Left out of {part}: {', '.join(names)}."
        console.print(escape(line), style="dim", soft_wrap=True)


def _state(run: FullRun) -> str:
    done = sum(row.state != "waiting" for row in run.rows)
    text = f"{done}/{len(run.rows)} rows, {duration(run.spent, '0 s')}"
    return text if run.budget is None else f"{text} of {duration(run.budget)}"


def _print_outcome(row: RowState, outcome: RowOutcome | None, console: Console) -> None:
    """Print the result of a finished row and write its page."""
    if outcome is None:
        console.print(escape(f"{row}: no time left."), style="dim")
        return
    summary = outcome.summary
    if summary is not None and summary.tasks:
        write_run_page(summary, outcome.plan.folder)
    if outcome.error is not None:
        line = f"{row} failed: {outcome.error}"
        console.print(escape(line), style="red", soft_wrap=True)
    elif summary is not None:
        line = f"{row.part} {row_line(outcome.plan, summary)}"
        console.print(escape(f"{line} ({outcome.seconds:.0f} s)"), soft_wrap=True)


def _command(flags: "Reproduce") -> list[str]:
    """Return the command, with the options that affect the numbers."""
    command = ["switch-ema", "reproduce", ALL]
    usual = RowSettings()
    for option in fields(usual):
        value = getattr(flags.settings, option.name)
        if option.name == "scale" or value != getattr(usual, option.name):
            given = value if isinstance(value, tuple) else (value,)
            command += [f"--{option.name}", *map(str, given)]
    return command if flags.budget is None else [*command, "--budget", flags.budget]


def _write(
    flags: "Reproduce",
    run: FullRun,
    stored: StoredRows,
    console: Console,
    *,
    is_finished: bool,
) -> Path:
    """Build the sections of all parts and one page from them."""
    folder, scale = stored.out, stored.scale
    command = _command(flags)
    sections = []
    with console.status("Measuring and drawing") as status:
        for table in TABLES.values():
            own = table_folder(folder, table, scale)
            # After Ctrl-C, skip figures: landscapes take long.
            if is_finished or not isinstance(table, PaperFigure):
                status.update(f"Measuring and drawing {table.name}")
                started = time.perf_counter()
                section = part_section(table, stored, shlex.join(command))
                write_part(section, own, table)
                run.drawing[table.name] = round(time.perf_counter() - started, 1)
                save_full_run(run, folder)
            sections += load_sections(own)
    tables = list(TABLES.values())
    found = overall(tables, stored)
    first = overview_section(run, tables, shlex.join(command), found)
    for sheet in first.sheets:
        print_sheet(sheet, console)
    for sentence in first.paragraphs:
        console.print(escape(sentence))
    save_section(first, folder)
    title = "The paper's tables and figures, reproduced"
    return write_analysis_page(title, [first, *sections], folder / REPORT)
