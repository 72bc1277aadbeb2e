"""`switch-ema reproduce --rehearse`: a few steps of every row, with time and memory."""

import json
import shlex
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from switch_ema._files import write_atomically
from switch_ema.bench.errors import UsageError

if TYPE_CHECKING:
    from switch_ema.commands.reproduce import Reproduce
    from switch_ema.paper.reproduce.plan import RowPlan
    from switch_ema.paper.reproduce.rehearsals import Rehearsal

_ALL = "all"
_TABLES = tuple(f"table-{number}" for number in range(2, 13))
"""The tables of the paper's own trainings, which "all" stands for."""


def rehearse(flags: "Reproduce", console: Console) -> None:
    """Rehearse rows, or write the stored rehearsals to a page."""
    from switch_ema.paper.reproduce.plan import plan_rows, select_tables

    named = [name for name in flags.tables if name != _ALL]
    tables = select_tables(named or _TABLES)
    if flags.format == "json":
        console = Console(stderr=True)
    if flags.write_docs is not None:
        plans = plan_rows(tables, flags.rows, flags.settings, flags.run.out)
        _write_page(plans, flags.run.out, flags.write_docs, console)
        return
    if not flags.tables:
        raise UsageError(f"name tables to rehearse, such as table-2, or {_ALL}.")
    plans = plan_rows(tables, flags.rows, flags.settings, flags.run.out)
    if flags.run.dry_run:
        print_data_check(plans, console)
        return
    _rehearse_rows(flags, plans, console)


def _rehearse_rows(
    flags: "Reproduce", plans: "Sequence[RowPlan]", console: Console
) -> None:
    """Rehearse rows one after the other, store and show what was measured.

    Raises:
        UsageError: Rows failed; all others were rehearsed and stored.
    """
    from switch_ema.paper.reproduce.rehearsals import save_rehearsal
    from switch_ema.paper.reproduce.rehearse import rehearse_row

    done: list[tuple[RowPlan, Rehearsal]] = []
    try:
        for number, plan in enumerate(plans, start=1):
            name = f"{plan.table.name} {plan.row.name}"
            with console.status(f"{number} of {len(plans)}: {escape(name)}"):
                found = rehearse_row(plan, flags.rehearsal, flags.run)
            save_rehearsal(flags.run.out, found)
            done.append((plan, found))
            end = f"failed: {found.error}" if found.error else "rehearsed"
            line = f"{name} {end} ({found.seconds:.0f} s)"
            style = "red" if found.error else None
            console.print(escape(line), style=style, soft_wrap=True)
    finally:  # show finished rows after Ctrl-C, too
        if done:
            _print_rehearsals(done, console)
        if flags.format == "json":
            print(json.dumps([_as_data(*one) for one in done], indent=1))
    failed = [found.row for _, found in done if found.error]
    if failed:
        raise UsageError(
            f"{len(failed)} of {len(plans)} rows failed ({', '.join(failed)}); the "
            "reasons are above."
        )


def _write_page(
    plans: "Sequence[RowPlan]", out: Path, path: Path, console: Console
) -> None:
    from switch_ema.paper.show.rehearsal_table import rehearsal_page, replaced

    if path.suffix != ".md":
        raise UsageError(f"--write-docs needs the path of a .md file, got {path}.")
    arguments = ["--scale", "paper", "--rehearse", "--write-docs", str(path)]
    command = shlex.join(["switch-ema", "reproduce", *arguments])
    write_atomically(path, replaced(path, rehearsal_page(plans, out, command)))
    console.print(f"Written: {escape(str(path))}", soft_wrap=True)


def _as_data(plan: "RowPlan", found: "Rehearsal") -> dict[str, object]:
    from switch_ema.bench.plan.cells import make_plan
    from switch_ema.paper.reproduce.rehearsals import estimated_hours

    hours = estimated_hours(found, make_plan(plan.config))
    return {**found.to_json(), "hours": hours}


def _print_rehearsals(
    done: "Sequence[tuple[RowPlan, Rehearsal]]", console: Console
) -> None:
    """Print a table of measurements for each table of the paper."""
    for name, rows in groupby(done, lambda one: one[1].table):
        table = Table(
            title=f"{name}, rehearsed",
            title_justify="left",
            box=SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
            pad_edge=False,
            show_edge=False,
        )
        table.add_column("row", no_wrap=True)
        table.add_column("data", no_wrap=True)
        for heading in _HEADINGS:
            table.add_column(heading, justify="right", no_wrap=True)
        for plan, found in rows:
            table.add_row(escape(found.row), *_cells(plan, found))
        console.print(table)
    console.print(
        "Step: seconds of an optimizer step, without waiting for data. Rates: examples "
        "per second of the input pipeline alone and of the step. Hours: all methods, "
        "seeds and epochs of the row with complete data on this machine, one training "
        "at a time."
    )
    if any(found.side is not None for _, found in done):
        console.print("With smaller images no hours are estimated.")
    _print_missing([name for _, found in done for name in found.missing], console)


def _print_missing(names: Sequence[str], console: Console) -> None:
    """Say what is missing, and which command says how to get it."""
    if names:
        missing = " ".join(dict.fromkeys(names))
        console.print(
            "Rows without data used generated files, and rows without pre-trained "
            f"weights random ones; `switch-ema data {escape(missing)}` says how to get "
            "them."
        )


_HEADINGS = ("batch", "step s", "RAM GB", "GPU GB", "input/s", "step/s", "hours")


def _cells(plan: "RowPlan", found: "Rehearsal") -> list[str]:
    from switch_ema.bench.plan.cells import make_plan
    from switch_ema.paper.reproduce.full_size import full_size
    from switch_ema.paper.reproduce.rehearsals import estimated_hours

    data = "none" if found.missing else "found"
    one, size = found.measured, full_size(found.task)
    if one is None:
        return [data, "failed", *[""] * (len(_HEADINGS) - 1)]
    hours = estimated_hours(found, make_plan(plan.config))
    return [
        data,
        f"{one.batch}/{size.batch}",
        _short(one.step_seconds),
        f"{one.process_mb / 1e3:.1f}",
        "-" if one.device_mb is None else f"{one.device_mb / 1e3:.1f}",
        _short(one.input_rate),
        _short(one.batch / one.step_seconds),
        "-" if hours is None else _short(hours),
    ]


def _short(value: float) -> str:
    """Format a number with about three digits.

    >>> [_short(value) for value in (0.01234, 1.234, 1234.5, 123456.7)]
    ['0.012', '1.23', '1234', '123k']
    """
    if value >= 100:
        return f"{value:.0f}" if value < 1e4 else f"{value / 1e3:.0f}k"
    return f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"


def print_data_check(plans: "Sequence[RowPlan]", console: Console) -> None:
    """Print which data of each row is there, and where."""
    from switch_ema.paper.reproduce.rehearse import check_data

    table = Table(title="Data")
    for name in ("row", "found", "missing"):
        table.add_column(name, overflow="fold")
    lacking: list[str] = []
    for plan in plans:
        check = check_data(plan)
        lacking += (*check.missing, *check.weights)
        table.add_row(
            escape(f"{plan.table.name} {plan.row.name}"),
            escape(", ".join(f"{k}: {v}" for k, v in check.found.items())),
            escape(", ".join((*check.missing, *check.weights))),
        )
    console.print(table)
    if lacking:
        names = " ".join(dict.fromkeys(lacking))
        console.print(f"`switch-ema data {escape(names)}` says how to get the rest.")


def planned_cost(plan: "RowPlan", out: Path) -> tuple[float | None, str]:
    """Return the remaining GPU-hours of a row, if known, and a text.

    They come from finished trainings on GPUs, else from a rehearsal on one. After a
    rehearsal without a GPU the text gives the hours on this machine.
    """
    from switch_ema.paper.reproduce.estimate import gpu_hours
    from switch_ema.paper.reproduce.rehearsals import load_rehearsal, rehearsed_hours

    known = gpu_hours(plan)
    if known is not None:
        return known, f"{known:.1f}"
    hours = rehearsed_hours(plan, out)
    if hours is None:
        return None, "unknown; --rehearse"
    found = load_rehearsal(out, plan.table.name, plan.row.name)
    assert found is not None and found.measured is not None
    if found.measured.device == "cpu":
        return None, f"{hours:,.0f} h on this CPU"
    return hours, f"{hours:,.0f}, rehearsed"
