"""`switch-ema reproduce --rehearse`: a few steps of every row, with time and memory."""

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

from switch_ema.bench.errors import UsageError
from switch_ema.commands.tables import narrow_table

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
        from switch_ema.commands.reproduce_plan import print_data_check

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
    from switch_ema.paper.show.rehearsal_table import write_rehearsals

    if path.suffix != ".md":
        raise UsageError(f"--write-docs needs the path of a .md file, got {path}.")
    arguments = ["--scale", "paper", "--rehearse", "--write-docs", str(path)]
    command = shlex.join(["switch-ema", "reproduce", *arguments])
    write_rehearsals(path, plans, out, command)
    console.print(f"Written: {escape(str(path))}", soft_wrap=True)


def _as_data(plan: "RowPlan", found: "Rehearsal") -> dict[str, object]:
    from switch_ema.bench.plan.cells import make_plan
    from switch_ema.paper.reproduce.rehearsals import estimated_hours

    hours = estimated_hours(found, make_plan(plan.config))
    return {**found.to_json(), "hours": hours}


def _print_rehearsals(
    done: "Sequence[tuple[RowPlan, Rehearsal]]", console: Console
) -> None:
    """Print the measurements, one line per row, in 80 columns."""
    headings = (
        _HEADINGS if _used_gpu(done) else tuple(h for h in _HEADINGS if h != _GPU)
    )
    table = narrow_table("Rehearsed rows")
    table.add_column("row", no_wrap=True)
    for heading in headings:
        table.add_column(heading.replace(" ", "\n"), justify="right", no_wrap=True)
    for plan, found in done:
        cells = _cells(plan, found)
        table.add_row(
            escape(f"{found.table.removeprefix('table-')} {found.row}"),
            *(cells.get(heading, "") for heading in headings),
        )
    console.print(table)
    console.print(
        "Data: whether it was found. Batch: examples per step, of the paper's. Step: "
        "seconds of an optimizer step, without waiting for data. Input, step: examples "
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


_GPU = "GPU GB"
_HEADINGS = ("data", "batch", "step s", "RAM GB", _GPU, "input /s", "step /s", "hours")


def _used_gpu(done: "Sequence[tuple[RowPlan, Rehearsal]]") -> bool:
    measured = [found.measured for _, found in done]
    return any(one is not None and one.device_mb is not None for one in measured)


def _cells(plan: "RowPlan", found: "Rehearsal") -> dict[str, str]:
    """Return the cells of a row by heading."""
    from switch_ema.bench.plan.cells import make_plan
    from switch_ema.paper.reproduce.full_size import full_size
    from switch_ema.paper.reproduce.rehearsals import estimated_hours

    cells = {"data": "no" if found.missing else "yes"}
    one = found.measured
    if one is None:
        return cells | {"batch": "failed"}
    hours = estimated_hours(found, make_plan(plan.config))
    gigabytes = "-" if one.device_mb is None else f"{one.device_mb / 1e3:.1f}"
    return cells | {
        "batch": f"{one.batch}/{_short(full_size(found.task).batch)}",
        "step s": _short(one.step_seconds),
        "RAM GB": f"{one.process_mb / 1e3:.1f}",
        _GPU: gigabytes,
        "input /s": _short(one.input_rate),
        "step /s": _short(one.batch / one.step_seconds),
        "hours": "-" if hours is None else _short(hours),
    }


def _short(value: float) -> str:
    """Format a number in five characters or less.

    >>> [_short(value) for value in (0.01234, 1.234, 12.34, 4096, 123456.7, 3294000)]
    ['0.012', '1.23', '12.3', '4096', '123k', '3.3M']
    """
    if value >= 1e6:
        return f"{value / 1e6:.1f}M" if value < 1e7 else f"{value / 1e6:.0f}M"
    if value >= 100:
        return f"{value:.0f}" if value < 1e4 else f"{value / 1e3:.0f}k"
    if value >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"
