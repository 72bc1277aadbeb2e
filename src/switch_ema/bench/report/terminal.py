"""Terminal output of a comparison."""

import re
import textwrap
from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from switch_ema.bench.broken_files import LEFT_OUT
from switch_ema.bench.plan.cells import Cell
from switch_ema.bench.report.first_screen import first_screen
from switch_ema.bench.report.narrow_tables import fits, print_block
from switch_ema.bench.report.notes import (
    looks_sentence,
    missing_sentence,
    price_sentence,
    share_sentences,
    shared_cost_sentence,
    skew_sentence,
    trivial_sentence,
)
from switch_ema.bench.report.numbers import (
    NONE,
    difference_unit,
    megabytes,
    seconds,
    shortened,
    with_unit,
)
from switch_ema.bench.report.rounding import rounding_sheets
from switch_ema.bench.report.rows import Row, baseline_of, make_rows
from switch_ema.bench.report.sections import Sheet
from switch_ema.bench.report.sweeps import sweep_sentences, sweep_sheets, sweep_title
from switch_ema.bench.report.verdict_text import (
    baseline_sentence,
    best_sentence,
    headline,
    rule_for,
    verdicts,
)
from switch_ema.bench.spec import is_script, wrappable
from switch_ema.bench.stats.paired import CONFIDENCE
from switch_ema.bench.stats.summary import (
    ComparisonSummary,
    Cost,
    Sweep,
    TaskSummary,
)
from switch_ema.bench.stats.verdicts import Verdict
from switch_ema.bench.text import counted, printable

_COLOURS: dict[Verdict, str] = {
    "helps": "bold green",
    "hurts": "bold red",
    "no difference": "yellow",
    "undecided": "magenta",
    "did not act": "dim",
    "baseline": "dim",
}
# Below this width, the best epoch and the interval move under their neighbours.
_WIDE = 100
_LONG_NAME = 12
_VERDICTS = (26, 21)
"""Widths of the verdicts in the short table, the widest that fits."""


def print_findings(summary: ComparisonSummary, console: Console) -> None:
    """Print the short report: one sentence and one table per task."""
    for sweep in summary.sweeps:
        _print_sweep(sweep, console)
    for task in () if summary.sweeps else summary.tasks:
        console.print()
        console.print(Text(printable(task.task), style="bold"))
        console.print(Text(best_sentence(task)))
        tables = (_short_results(task, width) for width in _VERDICTS)
        if table := next((table for table in tables if fits(table, console)), None):
            console.print(table)
        else:
            _print_results(task, console)
        _print_lines(console, first_screen(task))
        _print_roundings(task, console)
        if doubt := skew_sentence(task):
            _print_lines(console, [("baseline", doubt)])
        _print_notes(task, console, share_sentences(task))
        if task.origin:
            _print_lines(console, [("baseline", _origin(task))])
        if LEFT_OUT in task.trained:
            _print_lines(console, [("baseline", _left_out(task))])
        if price := price_sentence(task):
            _print_lines(console, [("baseline", price)])


def print_comparison(summary: ComparisonSummary, console: Console) -> None:
    """Print the full report: table, verdicts and cost per task.

    Everything is passed to rich as ``Text``, never as markup, so names may contain
    square brackets.
    """
    for sweep in summary.sweeps:
        _print_sweep(sweep, console)
    for task in summary.tasks:
        _print_task(task, console)
    console.print()
    console.print(Text(rule_for(summary.tasks), style="dim"))


def print_plan(cells: Sequence[Cell], console: Console) -> None:
    """Print what will be trained."""
    table = Table("task", "one training each of", "seeds", "epochs", title="Plan")
    for column in table.columns:
        column.overflow = "fold"  # tasks may differ in the end of their names alone
    rows: dict[tuple[str, tuple[str, ...]], list[Cell]] = {}
    for cell in cells:
        rows.setdefault((cell.task, cell.methods), []).append(cell)
    shown = ""
    for (task, methods), members in rows.items():
        seeds = str(sum(len(cell.seeds) for cell in members))
        if (most := max(len(cell.seeds) for cell in members)) > 1:
            seeds += f", {most} at once"
        names = escape(", ".join(methods))
        epochs = "its own" if is_script(task) else str(members[0].recipe.epochs)
        title = "" if task == shown else escape(wrappable(task))
        table.add_row(title, names, seeds, epochs)
        shown = task
    console.print(table)


def print_trials(cells: Sequence[Cell], console: Console) -> None:
    """Print what tuning will train before the comparison."""
    candidates = dict.fromkeys(m for cell in cells for m in cell.methods)
    seeds: dict[str, set[int]] = {}
    for cell in cells:
        seeds.setdefault(cell.task, set()).update(cell.seeds)
    few, *_, many = sorted(map(len, seeds.values())) * 2
    number = str(few) if few == many else f"{few} to {many}"
    text = (
        f"Tuning first trains {counted(len(candidates), 'candidate')} on a validation "
        f"split with {number} other seeds: "
    )
    console.print(Text(text + printable(", ".join(candidates)), style="dim"))


def _print_sweep(sweep: Sweep, console: Console) -> None:
    """Print the settings of one task side by side."""
    if not sweep.points:
        return
    console.print()
    console.print(Text(sweep_title(sweep), style="bold"))
    console.print(Text(_conditions(sweep.points[0]), style="dim"))
    for sheet in sweep_sheets(sweep):
        _print_sheet(sheet, console)
    _print_lines(console, sweep_sentences(sweep))
    shares = dict.fromkeys(t for point in sweep.points for t in share_sentences(point))
    _print_lines(console, [("baseline", text) for text in shares])
    for point in sweep.points:
        _print_trouble(point, console)


def _print_roundings(task: TaskSummary, console: Console) -> None:
    for sheet in rounding_sheets(task):
        console.print()
        _print_sheet(sheet, console)


def _print_sheet(sheet: Sheet, console: Console) -> None:
    console.print(Text(printable(sheet.caption), style="dim"))
    table = _table()
    table.add_column(Text(printable(sheet.header[0])), overflow="fold")
    for name in sheet.header[1:]:
        heading = Text(_broken(printable(name)))
        table.add_column(heading, justify="right", overflow="fold")
    for row in sheet.rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    if fits(table, console):
        console.print(table)
        return
    for row in sheet.rows:
        facts = list(zip(sheet.header[1:], row[1:], strict=True))
        print_block(console, printable(row[0]), facts)


def _print_task(task: TaskSummary, console: Console) -> None:
    console.print()
    console.print(Text(printable(task.title), style="bold"))
    console.print(Text(_conditions(task), style="dim"))
    _print_results(task, console)
    console.print(Text(headline(task), style="bold"))
    _print_lines(console, first_screen(task))
    _print_lines(console, verdicts(task))
    _print_lines(console, [("baseline", baseline_sentence(task))])
    _print_roundings(task, console)
    _print_notes(task, console, [*share_sentences(task), trivial_sentence(task)])
    if task.costs:
        console.print()
        _print_costs(task, console)
        note = f"{price_sentence(task)} {shared_cost_sentence(task)}"
        console.print(Text(note, style="dim"))


def _print_notes(task: TaskSummary, console: Console, notes: Sequence[str]) -> None:
    """Print further notes, problems and missing trainings."""
    notes = [*notes, looks_sentence(task)]
    _print_lines(console, [("baseline", text) for text in notes if text])
    _print_trouble(task, console)


def _print_trouble(task: TaskSummary, console: Console) -> None:
    """Print problems and the number of missing trainings."""
    problems = [f"Problem: {printable(text)}" for text in task.problems]
    _print_lines(console, [("hurts", text) for text in problems])
    if missing := missing_sentence(task):
        _print_lines(console, [("undecided", missing)])


def _print_lines(console: Console, lines: Sequence[tuple[Verdict, str]]) -> None:
    """Print sentences, each with a bullet in the colour of its verdict."""
    for verdict, text in lines:
        line = Table.grid(padding=(0, 1))
        line.add_row(Text("*", style=_COLOURS[verdict]), Text(text))
        console.print(Padding(line, (0, 0, 0, 1)))


def _conditions(task: TaskSummary) -> str:
    metric = task.metrics[0]
    direction = "higher" if metric.higher_is_better else "lower"
    unit = difference_unit(metric)
    text = f"{task.description.rstrip('.')}. "
    if task.optimizer:
        epochs = counted(task.epochs, "epoch")
        text += f"Trained with {task.optimizer} for {epochs}; "
    text += (
        f"{metric.name} decides, {direction} is better. "
        f"Differences{f' in {unit}' if unit else ''}: positive is better."
    )
    if task.origin:
        text += f" {_origin(task)}"
    if LEFT_OUT in task.trained:
        text += f" {_left_out(task)}"
    return printable(text)


def _origin(task: TaskSummary) -> str:
    return printable(f"Initial weights: {task.origin.rstrip('.')}.")


def _left_out(task: TaskSummary) -> str:
    return printable(f"{LEFT_OUT}: {task.trained[LEFT_OUT]}.")


def _table() -> Table:
    return Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))


def _short_results(task: TaskSummary, width: int) -> Table:
    """Make the short table with verdicts of at most the given width."""
    metric = task.metrics[0]
    baseline = shortened(printable(baseline_of(task.results[metric.name])), 14)
    table = _table()
    table.add_column("method", overflow="fold", min_width=10)
    name = shortened(printable(with_unit(metric)), 20)
    table.add_column(name, justify="right", no_wrap=True)
    heading = f"vs {baseline} [{CONFIDENCE} CI]"
    table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("n", justify="right", no_wrap=True)
    for row in make_rows(task, metric):
        shift = row.difference
        if row.interval != NONE:
            shift += f" {row.interval}"
        # The sentence above says than what there is no larger difference.
        words = row.words if row.verdict == "undecided" else row.verdict
        table.add_row(
            Text(_broken(printable(row.method))),
            Text(row.last),
            Text(shift),
            Text(textwrap.fill(words, width), _COLOURS[row.verdict]),
            Text(row.n),
        )
    return table


def _print_results(task: TaskSummary, console: Console) -> None:
    """Print the widest layout that fits."""
    for wide in (True, False)[console.width < _WIDE :]:
        table = _results(task, wide=wide)
        if fits(table, console):
            console.print(table)
            return
    metric = task.metrics[0]
    baseline = printable(baseline_of(task.results[metric.name]))
    for row in make_rows(task, metric):
        facts: list[tuple[str, str | Text]] = [
            (f"{printable(with_unit(metric))}, last epoch", row.last),
            ("best epoch", row.best),
            ("verdict", Text(row.words, style=_COLOURS[row.verdict])),
            ("n", row.n),
        ]
        if row.difference != NONE:
            facts[2:2] = [
                (
                    f"difference vs {baseline} [{CONFIDENCE} CI]",
                    f"{row.difference} {row.interval}",
                ),
                ("p after Holm", row.p),
                ("speed-up (epochs)", row.speed_up),
            ]
        print_block(console, printable(row.method), facts)


def _results(task: TaskSummary, *, wide: bool) -> Table:
    metric = task.metrics[0]
    baseline = shortened(printable(baseline_of(task.results[metric.name])), 14)
    name = shortened(printable(with_unit(metric)), 20)
    table = _table()
    table.add_column("method", overflow="fold", min_width=10)
    last = Text(f"{name}\nlast epoch\nmean ± sd")
    if not wide:
        last.append("\n[best epoch]", style="dim not bold")
    table.add_column(last, justify="right", no_wrap=True)
    if wide:
        best = Text("for infor-\nmation:\nbest epoch", style="dim not bold")
        table.add_column(best, justify="right", no_wrap=True, style="dim")
    shift = Text(f"difference\nvs {baseline}\n[{CONFIDENCE} CI]")
    table.add_column(shift, justify="right", no_wrap=True)
    table.add_column("p\nafter\nHolm", justify="right", no_wrap=True)
    table.add_column("verdict", min_width=10)
    table.add_column("speed-up\n(epochs)", justify="right", min_width=9)
    table.add_column("n", justify="right", no_wrap=True)
    rows = make_rows(task, metric)
    one_line = wide and all(len(row.method) <= _LONG_NAME for row in rows)
    for row in rows:
        table.add_row(*_cells(row, wide=wide, between=" " if one_line else "\n"))
    return table


def _cells(row: Row, *, wide: bool, between: str) -> list[Text]:
    shift = row.difference
    if row.interval != NONE:
        shift += f"{between}{row.interval}"
    cells = [Text(row.last), Text(row.best)]
    verdict = textwrap.fill(row.words, 17) if wide else textwrap.fill(row.verdict, 10)
    if not wide:  # the best epoch does not decide: dimmed, below the last
        cells = [Text(row.last).append(f"\n[{row.best}]", style="dim")]
    return [
        Text(_broken(printable(row.method))),
        *cells,
        Text(shift),
        Text(row.p),
        Text(verdict, _COLOURS[row.verdict]),
        Text(row.speed_up.replace(") ", ")\n")),
        Text(row.n),
    ]


def _broken(name: str) -> str:
    """Break a long name into one line per option."""
    return name if len(name) <= _LONG_NAME else re.sub(r"([:,])(?=.)", r"\1\n ", name)


def _print_costs(task: TaskSummary, console: Console) -> None:
    """Print costs separately: unlike the results, they vary between runs."""
    names = ("training, s", "evaluation, s", "state, MB", "seeds")
    table = _table()
    table.add_column("cost per seed", overflow="fold")
    for name in names:
        table.add_column(name, justify="right")
    rows = {printable(" + ".join(c.methods)): _cost_cells(c) for c in task.costs}
    for methods, cells in rows.items():
        table.add_row(Text(methods), *cells)
    if fits(table, console):
        console.print(table)
        return
    console.print(Text("Cost per seed"))
    for methods, cells in rows.items():
        print_block(console, methods, list(zip(names, cells, strict=True)))


def _cost_cells(cost: Cost) -> list[str]:
    return [
        seconds(cost.train_seconds),
        seconds(cost.evaluate_seconds),
        megabytes(cost.memory_mb),
        str(cost.seeds),
    ]
