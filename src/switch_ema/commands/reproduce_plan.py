"""The plan of `switch-ema reproduce`: rows, their cost, and which data is there."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from switch_ema.bench.errors import UsageError
from switch_ema.bench.execute.options import RunOptions
from switch_ema.bench.spec import wrappable
from switch_ema.commands.tables import narrow_table

if TYPE_CHECKING:
    from switch_ema.commands.reproduce import Reproduce
    from switch_ema.paper.reproduce.plan import RowPlan


def print_plan(
    flags: "Reproduce", plans: Sequence["RowPlan"], console: Console
) -> None:
    """Print the rows with the time or the GPU-hours that they will take."""
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

    workers = run.workers_per_training
    table, known, refused = _plan_table("GPU-hours"), [], dict[str, None]()
    for plan in plans:
        hours, cost = _planned_cost(plan, run.out)
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
    if len(known) == len(plans):
        console.print(f"Total GPU-hours: {sum(known):.1f}.")
    else:
        console.print(
            "Total GPU-hours: unknown until every row was trained or rehearsed "
            "(--rehearse) on a GPU here."
        )
    print_data_check(plans, console)


def _plan_table(cost: str) -> Table:
    table = narrow_table("Plan")
    table.add_column("row, task, methods", overflow="fold", ratio=1)
    table.add_column("seeds", justify="right")
    table.add_column(cost, justify="right")
    return table


def _add_plan(table: Table, plan: "RowPlan", cost: str) -> None:
    lines = [
        *map(wrappable, plan.config.tasks),
        ", ".join(plan.config.methods),
    ]
    detail = Padding(Text("\n".join(lines), style="dim"), (0, 0, 0, 2))
    row = Group(Text(f"{plan.table.name} {plan.row.name}"), detail)
    table.add_row(row, str(plan.config.seeds), cost)


def print_data_check(plans: "Sequence[RowPlan]", console: Console) -> None:
    """Print which data of each row is there, and where."""
    from switch_ema.paper.reproduce.rehearse import check_data

    table = narrow_table("Data")
    table.add_column("row", no_wrap=True)
    for name in ("found", "missing"):
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


def _planned_cost(plan: "RowPlan", out: Path) -> tuple[float | None, str]:
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
        return None, "unknown"
    found = load_rehearsal(out, plan.table.name, plan.row.name)
    assert found is not None and found.measured is not None
    if found.measured.device == "cpu":
        return None, f"{hours:,.0f} h on this CPU"
    return hours, f"{hours:,.0f}, rehearsed"
