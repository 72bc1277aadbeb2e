"""Numbers in Markdown pages that are computed from evidence files.

A quote names its source in comments around it, which readers of a page do not see::

    <!-- evidence/demo.jsonl; digits; ema; gain -->+0.35 [+0.09, +0.62]<!-- end -->

The parts are the file, the task, the method and what is quoted:

- ``value`` (mean and standard deviation) or ``n``;
- ``gain`` over the baseline or ``gain over METHOD`` with its interval, ``verdict`` or
  ``verdict over METHOD``; only those over the baseline are corrected over methods;
- ``best gain over METHOD``: both at their best epoch;
- ``change by ROUNDING`` of the final weights, such as ``change by int4``, or
  ``change by ROUNDING over METHOD``, the difference from another method's change.

A fifth part names another metric than the one that decides. The sign of a gain is
positive if the method is better.

Tables have a comment of their own, which may take several lines and several files::

    <!-- evidence/a.jsonl, evidence/b.jsonl; tasks;
    plain = plain: value;
    EMA = ema: gain over plain
    -->

- ``tasks; HEADING = METHOD: WHAT; ...`` has a row for each task;
- ``methods of TASK; HEADING = WHAT; ...`` has a row for each method;
- ``first screen of TASK`` quotes the lines below the verdict;
- ``table`` quotes the whole table of a comparison.

Semicolons separate the parts because ``|`` in a quote would split a table's cell.

In the first two ``WHAT in METRIC`` names another metric, and gains and changes that the
test finds are bold.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from switch_ema.bench.compare import summarize_run
from switch_ema.bench.errors import UsageError
from switch_ema.bench.recipe import Metric
from switch_ema.bench.report.first_screen import first_screen
from switch_ema.bench.report.numbers import (
    digits_of,
    digits_within,
    gain_and_interval,
    mean_and_spread,
)
from switch_ema.bench.report.rounding import rounding_changes, rounding_head_to_head
from switch_ema.bench.report.tables import as_markdown
from switch_ema.bench.stats.paired import Difference, verdict_of
from switch_ema.bench.stats.summary import ComparisonSummary, TaskSummary
from switch_ema.bench.text import ENDING

_QUOTE = re.compile(
    rf"<!-- (?P<source>[^;>]+{re.escape(ENDING)};[^>]+?)-->"
    r"(?P<text>.*?)<!-- end -->",
    re.DOTALL,
)
_CHANGE = re.compile(r"change by (?P<kind>\S+)(?: over (?P<other>.+))?")
_ROUNDING = 1e-6
"""Relative rounding error of float32 metrics, which is no difference."""
_OVER = re.compile(r"(?P<what>gain|verdict|best gain)(?: over (?P<other>.+))?")
_OF_TASK = re.compile(r"(?P<what>methods|first screen) of (?P<task>.+)")


def refreshed(text: str, folder: Path) -> str:
    """Return a page with all its quotes computed again.

    Args:
        text: the page.
        folder: that of the repository, which paths of evidence files start from.

    Raises:
        UsageError: a quote names a file, task, method or number that does not exist.
    """
    read: dict[str, ComparisonSummary] = {}

    def quoted(found: re.Match[str]) -> str:
        names, *parts = (part.strip() for part in found["source"].split(";"))
        files = [name.strip() for name in names.split(",")]
        for name in files:
            if name not in read:
                read[name] = summarize_run(folder / name)
        try:
            content = _content([read[name] for name in files], *parts)
        except (KeyError, TypeError, ValueError):
            raise UsageError(
                f"the quote {found['source'].strip()} names no task, method "
                "and number of this file."
            ) from None
        return f"<!-- {found['source']}-->{content}<!-- end -->"

    return _QUOTE.sub(quoted, text)


def _content(summaries: list[ComparisonSummary], first: str, *parts: str) -> str:
    """Compute a quote; an unknown name is a KeyError."""
    tasks = {task.title: task for one in summaries for task in one.tasks}
    if first == "table":
        (summary,) = summaries
        return f"\n{as_markdown(summary)}"
    if first == "tasks":
        rows = {f"`{title}`": _by_task(task) for title, task in tasks.items()}
        return _table("task", rows, parts)
    named = _OF_TASK.fullmatch(first)
    if named is None:
        return _quote(tasks[first], *parts)
    task = tasks[named["task"]]
    if named["what"] == "methods":
        methods = [result.method for result in task.results[task.metrics[0].name]]
        return _table("method", {m: _by_method(task, m) for m in methods}, parts)
    if parts:
        raise KeyError(parts)
    lines = "\n".join(f"- {line}" for _, line in first_screen(task))
    return f"\n\n{lines}\n\n"


_Cell = Callable[[str], str]
"""Computes the cell of a row from the text of a column."""


def _by_task(task: TaskSummary) -> _Cell:
    def cell(column: str) -> str:
        method, what = column.rsplit(": ", 1)
        return _by_method(task, method)(what)

    return cell


def _by_method(task: TaskSummary, method: str) -> _Cell:
    def cell(column: str) -> str:
        what, _, metric = column.partition(" in ")
        own = _metric(task, metric)
        baseline = next(r for r in task.results[own.name] if r.verdict == "baseline")
        over = baseline.method if what == "gain" else what.partition(" over ")[2]
        if method == over:
            return ""
        return _quote(task, method, what, metric, marks=True)

    return cell


def _table(corner: str, rows: dict[str, _Cell], columns: tuple[str, ...]) -> str:
    headings, cells = zip(*(c.split(" = ", 1) for c in columns), strict=True)
    lines = [
        [corner, *headings],
        ["---"] * (1 + len(columns)),
        *([name, *map(cell, cells)] for name, cell in rows.items()),
    ]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"\n\n{table}\n\n"


def _quote(
    task: TaskSummary,
    method: str,
    what: str,
    metric: str = "",
    *,
    marks: bool = False,
) -> str:
    """Compute one number.

    In a table, ``marks`` makes differences bold that the test finds, and shows two
    digits of every interval's half width: methods may differ in it by a lot.
    """
    measured = _metric(task, metric)
    results = {r.method: r for r in task.results[measured.name]}
    result, digits = results[method], digits_of(measured, results.values())
    if what == "value":
        return mean_and_spread(result.last, digits)
    if what == "n":
        return str(result.last.n)
    if change := _CHANGE.fullmatch(what):
        digits = rounding_changes(task, change["kind"])[1]
    difference = _difference(task, method, what, measured)
    verdict = verdict_of(difference)
    if what.startswith("verdict"):
        return verdict
    if difference is None:
        raise KeyError("too few seeds")
    if difference.sd and (marks or what.startswith("best")):
        digits = max(digits, digits_within(difference))
    if abs(difference.mean) <= _ROUNDING * abs(result.last.mean):
        difference = replace(difference, mean=0.0)
    gain = gain_and_interval(difference, digits)
    return f"**{gain}**" if marks and verdict in ("helps", "hurts") else gain


def _metric(task: TaskSummary, name: str) -> Metric:
    return {one.name: one for one in task.metrics}[name or task.metrics[0].name]


def _difference(
    task: TaskSummary, method: str, what: str, metric: Metric
) -> Difference | None:
    results = {r.method: r for r in task.results[metric.name]}
    if change := _CHANGE.fullmatch(what):
        kind, other = change["kind"], change["other"]
        if other:
            return rounding_head_to_head(task, method, other, kind)
        return rounding_changes(task, kind)[0][method]
    asked = _OVER.fullmatch(what)
    if asked is None or (asked["other"] and asked["other"] not in results):
        raise KeyError(what)
    is_best = asked["what"].startswith("best")
    if asked["other"]:
        return task.against(method, asked["other"], metric, at_best=is_best)
    if is_best:
        raise KeyError(what)
    return results[method].difference
