"""Results as Markdown, CSV, LaTeX and JSON."""

import csv
import io
import re
import unicodedata
from collections.abc import Callable, Sequence

from switch_ema.bench.recipe import Metric
from switch_ema.bench.report.machine import as_json
from switch_ema.bench.report.numbers import NONE, difference_unit, with_unit
from switch_ema.bench.report.rows import baseline_of, make_rows
from switch_ema.bench.report.verdict_text import best_sentence
from switch_ema.bench.stats.paired import CONFIDENCE
from switch_ema.bench.stats.summary import ComparisonSummary, TaskSummary
from switch_ema.bench.text import printable

_COLUMNS = (
    *("task", "metric", "unit", "higher_is_better", "method", "mean", "sd", "n"),
    *("difference", "low", "high", "p_holm", "verdict"),
    *("smallest_effect", "detectable"),
)
_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}


def _as_csv(summary: ComparisonSummary) -> str:
    """Write one line per task, metric and method, at full precision."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for task in summary.tasks:
        for metric in task.metrics:
            for result in task.results[metric.name]:
                last, d = result.last, result.difference
                writer.writerow(
                    [
                        *map(_cell, (task.title, metric.name, metric.unit)),
                        *(metric.higher_is_better, _cell(result.method)),
                        *(last.mean, "" if last.sd is None else last.sd, last.n),
                        *((d.mean, d.low, d.high, d.p_holm) if d else ("",) * 4),
                        result.verdict,
                        *((d.smallest_effect, d.detectable) if d else ("",) * 2),
                    ]
                )
    return text.getvalue()


def as_markdown(summary: ComparisonSummary) -> str:
    """Write a sentence and a table of the primary metric per task."""
    parts = []
    for task in summary.tasks:
        header, lines = _table(task, task.metrics[0])
        rows = [header, ["---", *["---:"] * (len(header) - 2), "---"], *lines]
        cells = [[cell.replace("|", r"\|") for cell in row] for row in rows]
        table = "\n".join(f"| {' | '.join(row)} |" for row in cells)
        title = printable(task.title)
        parts.append(f"### {title}\n\n{best_sentence(task)}\n\n{table}\n")
    return "\n".join(parts)


def _as_latex(summary: ComparisonSummary) -> str:
    """Write one table per task, using the booktabs package."""
    parts = []
    for task in summary.tasks:
        header, lines = _table(task, task.metrics[0])
        columns = f"l{'r' * (len(header) - 2)}l"
        rows = [
            r" & ".join(map(latex_escaped, row)) + r" \\" for row in [header, *lines]
        ]
        body = "\n".join(rows[1:])
        parts.append(
            f"% {printable(task.title)}: {best_sentence(task)}\n"
            f"\\begin{{tabular}}{{{columns}}}\n\\toprule\n{rows[0]}\n\\midrule\n"
            f"{body}\n\\bottomrule\n\\end{{tabular}}\n"
        )
    return "\n".join(parts)


FORMATS: dict[str, Callable[[ComparisonSummary], str]] = {
    "md": as_markdown,
    "csv": _as_csv,
    "latex": _as_latex,
    "json": as_json,
}
"""Output formats besides terminal and page."""


def _table(task: TaskSummary, metric: Metric) -> tuple[list[str], list[list[str]]]:
    """Return the header and the rows; the last column is the verdict."""
    baseline, unit = baseline_of(task.results[metric.name]), difference_unit(metric)
    shift = f"difference from {baseline}{f' ({unit})' if unit else ''}"
    header = ["method", with_unit(metric), shift, f"{CONFIDENCE} CI", "n", "verdict"]
    rows = [
        [row.method, row.last, row.difference, row.interval, row.n, row.words]
        for row in make_rows(task, metric)
    ]
    return [printable(cell) for cell in header], [_without_hyphens(row) for row in rows]


def _cell(text: str) -> str:
    r"""Escape untrusted text that a spreadsheet would run as a formula.

    >>> _cell("=1+1"), _cell("-0.5"), _cell("loss"), _cell("\t@A1")
    ("'=1+1", '-0.5', 'loss', '\\t@A1')
    """
    spelled = printable(text)
    if not unicodedata.normalize("NFKC", spelled).startswith(("=", "+", "-", "@")):
        return spelled  # NFKC: some programs accept full-width signs, too
    try:
        float(spelled)
    except ValueError:
        return f"'{spelled}"
    return spelled


def _without_hyphens(row: Sequence[str]) -> list[str]:
    return ["" if cell == NONE else printable(cell) for cell in row]


def latex_escaped(text: str) -> str:
    r"""Escape a text for LaTeX, with proper minus signs.

    >>> latex_escaped("50% of a_b: -0.5 ± 1")
    '50\\% of a\\_b: $-$0.5 $\\pm$ 1'
    """
    spelled = "".join(_LATEX.get(character, character) for character in text)
    return re.sub(r"(?:(?<=[\s(\[])|^)-(?=\d)", "$-$", spelled)
