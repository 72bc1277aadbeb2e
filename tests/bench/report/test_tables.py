"""Results as Markdown, CSV and LaTeX say what the summary says."""

import csv
import io
from dataclasses import replace

import pytest

from switch_ema.bench.report.tables import FORMATS
from tests.bench.report.synthetic import NASTY_METHOD, make_summary


def test_csv_has_every_number_in_full() -> None:
    summary = make_summary()
    rows = list(csv.DictReader(io.StringIO(FORMATS["csv"](summary))))
    expected = [
        (task, metric, result)
        for task in summary.tasks
        for metric in task.metrics
        for result in task.results[metric.name]
    ]
    assert len(rows) == len(expected)
    for row, (task, metric, result) in zip(rows, expected, strict=True):
        assert (row["task"], row["metric"]) == (task.task, metric.name)
        assert (row["method"], row["verdict"]) == (result.method, result.verdict)
        assert float(row["mean"]) == pytest.approx(result.last.mean, nan_ok=True)
        if result.difference is not None:
            assert float(row["low"]) == pytest.approx(
                result.difference.low, nan_ok=True
            )


@pytest.mark.parametrize("text", ["=HYPERLINK(1)", "+a", "-a", "@a", "\t=1", "\uff1d1"])
def test_no_cell_of_csv_is_a_formula_or_moves_a_cursor(text) -> None:
    summary = make_summary()
    task = summary.tasks[0]
    metric = replace(task.metrics[0], unit=text)
    results = [replace(r, method=text + "\x1b[2J") for r in task.results[metric.name]]
    task = replace(
        task, task=text, metrics=(metric,), results={metric.name: results}, point="\r"
    )
    summary = replace(summary, tasks=[task])
    found = FORMATS["csv"](summary)
    assert all(c.isprintable() or c == "\n" for c in found)
    for row in csv.DictReader(io.StringIO(found)):
        for column in ("task", "unit", "method"):
            assert row[column][0] in "'\\"
        float(row["mean"]), float(row["difference"] or 0)  # numbers stay numbers


def test_markdown_has_a_table_of_equal_rows_per_task() -> None:
    summary = make_summary()
    text = FORMATS["md"](summary)
    for task in summary.tasks:
        part = text.partition(f"### {task.task}")[2].partition("\n### ")[0]
        lines = [line for line in part.splitlines() if line.startswith("|")]
        assert len(lines) == 2 + len(task.results[task.metrics[0].name])
        assert {line.replace("\\|", "").count("|") for line in lines} == {7}


def test_latex_escapes_names_and_closes_its_tables() -> None:
    summary = make_summary()
    text = FORMATS["latex"](summary)
    number = len(summary.tasks)
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == number
    body = "\n".join(x for x in text.splitlines() if not x.startswith("%"))
    assert "&" in NASTY_METHOD or "<" in NASTY_METHOD
    assert all(line.endswith(r"\\") for line in body.splitlines() if " & " in line)
    assert r"\%" in body and " % " not in body
