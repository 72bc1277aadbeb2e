"""`switch-ema reproduce --evaluate-only`: kept weights, evaluated again."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from switch_ema.bench.errors import UsageError
from switch_ema.bench.report.numbers import fixed
from switch_ema.bench.results.folder import RESULTS
from switch_ema.bench.results.kept_weights import EvaluatedAgain, evaluate_kept

if TYPE_CHECKING:
    from switch_ema.paper.reproduce.plan import RowPlan

_DECIMALS = 4


def evaluate_rows(
    plans: Sequence["RowPlan"], device: str | None, console: Console
) -> None:
    """Evaluate the kept weights of rows and print them beside the stored values.

    Args:
        plans: the rows; those without results are left out.
        device: cpu or cuda; None lets Accelerate choose.
        console: where to print.
    """
    trained = [plan for plan in plans if (plan.folder / RESULTS).is_file()]
    if not trained:
        names = ", ".join(f"{plan.table.name} {plan.row.name}" for plan in plans)
        raise UsageError(f"nothing is stored of {names}; train it first.")
    for plan in trained:
        tables: dict[str, Table] = {}
        with console.status(f"Evaluating {escape(plan.row.name)}") as status:
            for one in evaluate_kept(plan.folder, device):
                status.update(escape(f"Evaluating {plan.row.name}, {one.method}"))
                if one.task not in tables:
                    tables[one.task] = _new_table(plan, one.task)
                _add(tables[one.task], one)
        for table in tables.values():
            console.print(table)


def _new_table(plan: "RowPlan", task: str) -> Table:
    title = plan.row.of_task(task).title
    table = Table(title=escape(f"{plan.table.name} {plan.row.name}: {title}"))
    for name in ("method", "seed", "metric", "stored", "again", "difference"):
        table.add_column(name, overflow="fold")
    return table


def _add(table: Table, one: EvaluatedAgain) -> None:
    known, change = "-", "-"
    if one.stored is not None:
        known = fixed(one.stored, _DECIMALS)
        change = fixed(one.value - one.stored, _DECIMALS, "+")
    table.add_row(
        *(escape(one.method), str(one.seed), escape(one.metric), known),
        *(fixed(one.value, _DECIMALS), change),
    )
