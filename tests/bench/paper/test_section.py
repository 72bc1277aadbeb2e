"""Our numbers beside the paper's, with results made up by hand."""

import pytest

from switch_ema.bench.paper import TABLES
from switch_ema.bench.paper.contrasts import contrasts_of
from switch_ema.bench.paper.reproduce import ReproducedRow
from switch_ema.bench.paper.section import (
    PROBED,
    SMALL,
    markdown_page,
    reproduction_section,
)
from switch_ema.bench.paper.tables import PaperRow, PaperTable, values_of
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.report.sections import AnalysisSection, Sheet
from switch_ema.bench.stats.paired import compare
from switch_ema.bench.stats.summary import Cost, TaskSummary
from switch_ema.bench.task import Metric

ACCURACY = Metric(name="accuracy", higher_is_better=True, unit="%")
METHODS = ("plain", "ema", "switch-ema")
NOISE = {0: -0.01, 1: 0.0, 2: 0.01}
"""Small beside the differences, so that three seeds decide."""


def paper_row(name, cells, baseline="plain"):
    return PaperRow(
        name=name,
        title=name.upper(),
        network="resnet18",
        dataset="cifar100",
        epochs=200,
        optimizer="sgd",
        values=values_of(METHODS, cells),
        baseline=baseline,
        printed_gain=0.5,
    )


def found(row, values, *, noise=NOISE, missing=0, problems=()):
    """Make up what was found: a value per method, and a little noise."""
    curves = {
        method: {seed: [values[method] + sign * e] for seed, e in noise.items()}
        for method, sign in zip(row.methods, (1, -1, 2), strict=True)
    }
    results = compare(curves, higher_is_better=True, baseline=row.baseline)
    task = TaskSummary(
        task="classification:network=resnet18",
        description="",
        optimizer="sgd",
        epochs=7,
        metrics=(ACCURACY,),
        curves={"accuracy": curves},
        results={"accuracy": results},
        costs=[Cost(METHODS[:2], 3, 4.0, 1.0, 1.0), Cost(METHODS[2:], 3, 4.0, 0.5, 1)],
        problems=list(problems),
        missing=missing,
    )
    config = CompareConfig(tasks=(task.task,), methods=row.methods)
    return ReproducedRow(row=row, task=task, config=config)


WINS = paper_row("wins", "76.8 77.0 77.3")
LOSES = paper_row("loses", "79.8 79.8 79.9")
TEACHES = paper_row("teaches", "55.0 69.6 70.1", baseline="ema")
NEVER = paper_row("never", "1.0 2.0 3.0")
TABLE = PaperTable(
    name="table-9", title="made up", decimals=1, rows=(WINS, LOSES, TEACHES, NEVER)
)
FOUND = [
    found(WINS, {"plain": 90.0, "ema": 90.0, "switch-ema": 91.0}),
    found(LOSES, {"plain": 95.0, "ema": 94.5, "switch-ema": 94.0}, missing=2),
    found(
        TEACHES,
        {"plain": 50.0, "ema": 60.0, "switch-ema": 60.5},
        problems=["seed 1: diverged."],
    ),
]


@pytest.fixture
def section():
    command = "switch-ema reproduce table-9"
    return reproduction_section(TABLE, FOUND, scale="small", command=command)


def test_contrasts_of_a_row_with_plain_as_baseline():
    told = [(c.method, c.over, c.verdict, c.paper) for c in contrasts_of(FOUND[0])]
    assert told == [
        ("ema", "plain", "undecided", 0.2),
        ("switch-ema", "plain", "better", 0.5),
        ("switch-ema", "ema", "better", 0.3),
    ]


def test_contrasts_of_a_row_whose_baseline_is_ema():
    told = [(c.method, c.over, c.verdict) for c in contrasts_of(FOUND[2])]
    assert told == [("plain", "ema", "worse"), ("switch-ema", "ema", "better")]


def test_signs_agree_or_not_or_cannot():
    ema, switch, head = contrasts_of(FOUND[1])
    assert ema.paper == 0 and ema.agrees is None
    assert switch.agrees is False and head.agrees is False
    assert next(iter(contrasts_of(FOUND[2]))).agrees is True


def test_our_line_stands_beside_the_papers(section):
    rows = section.sheets[0].rows
    assert rows[0] == ["WINS", *[""] * 7]
    assert rows[1] == [
        *("plain", "90.00 ± 0.01", "3", "-", "-", "baseline", "76.8", "-")
    ]
    # Differences of +0.99, +1.00 and +1.01: t is 4.303 with two degrees of freedom,
    # so the half width is 4.303 * 0.01 / sqrt(3) = 0.025.
    assert rows[3] == [
        *("switch-ema", "91.00 ± 0.02", "3", "+1.00", "[+0.98, +1.02]"),
        *("better", "77.3", "+0.5"),
    ]


def test_wins_losses_and_signs_are_counted(section):
    counted = {row[0]: row[1:] for row in section.sheets[1].rows}
    assert counted["switch-ema over plain"] == [
        *("2", "1 / 1 / 0", "2 / 0 / 0", "1 of 2", "1 of 2", "+0.00", "+0.30")
    ]
    assert counted["switch-ema over ema"] == [
        *("3", "2 / 1 / 0", "3 / 0 / 0", "2 of 3", "2 of 3", "+0.50", "+0.30")
    ]
    assert counted["ema over plain"][:4] == ["2", "0 / 1 / 1", "1 / 0 / 1", "0 of 0"]
    assert counted["plain over ema"][1:3] == ["0 / 1 / 0", "0 / 1 / 0"]


def test_what_was_trained_and_its_cost(section):
    line = section.sheets[2].rows[0]
    assert line[1:] == [
        *("classification:network=resnet18", "the task's", "7", "accuracy (%)", "9.50")
    ]


def test_it_says_what_it_is_and_what_is_missing(section):
    text = " ".join(section.paragraphs)
    assert SMALL in text
    assert "Not run with the present recipes: never." in text
    assert "LOSES: 2 trainings not run yet" in text
    assert "TEACHES: seed 1: diverged." in text
    won = "Switch EMA over plain training, ours: 1 better, 1 worse and 0 undecided"
    assert f"{won} of 2 rows." in text


def test_it_says_that_small_self_supervised_rows_are_probed(section):
    assert PROBED not in section.paragraphs
    table = TABLES["table-5"]
    section = reproduction_section(table, [], scale="small", command="x")
    assert PROBED in section.paragraphs


def test_the_papers_scale_is_not_called_small():
    section = reproduction_section(TABLE, FOUND, scale="paper", command="x")
    assert SMALL not in section.paragraphs


def test_one_seed_has_no_interval():
    values = {"plain": 90.0, "ema": 90.0, "switch-ema": 91.0}
    one = found(WINS, values, noise={0: 0.0})
    section = reproduction_section(TABLE, [one], scale="small", command="x")
    assert section.sheets[0].rows[3][1:6] == ["91.00", "1", "-", "-", "too few seeds"]
    assert section.sheets[1].rows == []


def test_a_table_without_runs_says_so():
    section = reproduction_section(TABLE, [], scale="small", command="x")
    assert section.sheets == []
    text = "No row of this table has been run with the present recipes."
    assert section.paragraphs == [SMALL, text]


def test_markdown_holds_every_cell(section):
    text = markdown_page([section], "switch-ema reproduce --write-docs x.md")
    assert text.startswith("# Results")
    assert "## Table 9: made up" in text
    assert (
        "| switch-ema | 91.00 ± 0.02 | 3 | +1.00 | [+0.98, +1.02] | better | 77.3 "
        "| +0.5 |" in text
    )
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len(lines) == sum(2 + len(sheet.rows) for sheet in section.sheets)


def test_markdown_escapes_what_divides_cells():
    sheet = Sheet(caption="c", header=["a"], rows=[["x|y"]])
    section = AnalysisSection(key="k", title="t", command="c", sheets=[sheet])
    assert r"| x\|y |" in markdown_page([section], "c")
