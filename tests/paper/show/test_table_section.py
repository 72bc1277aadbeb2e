"""Our numbers beside the paper's, with results made up by hand."""

from dataclasses import replace

import pytest

from switch_ema.bench.errors import UsageError
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.report.sections import AnalysisSection, Sheet
from switch_ema.bench.stats.paired import compare
from switch_ema.bench.stats.summary import TaskSummary
from switch_ema.bench.task import Metric
from switch_ema.paper import TABLES
from switch_ema.paper.reproduce.collect import ReproducedRow
from switch_ema.paper.show.gains import contrasts_of
from switch_ema.paper.show.table_section import (
    PERCENT,
    SMALL,
    markdown_pages,
    reproduction_section,
)
from switch_ema.paper.tables.selfsupervised import PROBED
from switch_ema.paper.tables.table import (
    PaperMetric,
    PaperRow,
    PaperTable,
    values_of,
)
from tests.paper.show.made_up import METHODS, NOISE, SETTING, found, paper_row

WINS = paper_row("wins", "76.8 77.0 77.3")
LOSES = paper_row("loses", "79.8 79.8 79.9")
TEACHES = paper_row("teaches", "55.0 69.6 70.1", baseline="ema")
NEVER = paper_row("never", "1.0 2.0 3.0")
TABLE = PaperTable(name="table-9", title="made up", rows=(WINS, LOSES, TEACHES, NEVER))
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
        ("ema", "plain", "no difference", 0.2),
        ("switch-ema", "plain", "helps", 0.5),
        ("switch-ema", "ema", "helps", 0.3),
    ]


def test_contrasts_of_a_row_whose_baseline_is_ema():
    told = [(c.method, c.over, c.verdict) for c in contrasts_of(FOUND[2])]
    assert told == [("plain", "ema", "hurts"), ("switch-ema", "ema", "helps")]


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
        *("switch-ema", "91.00 ± 0.02", "3", "+1.00", "[+0.95, +1.05]"),
        *("helps", "77.3", "+0.5"),
    ]


def test_wins_losses_and_signs_are_counted(section):
    counted = {row[0]: row[1:] for row in section.sheets[1].rows}
    assert counted["Switch EMA over plain"] == [
        *("2", "1 / 1 / 0 / 0", "2 / 0 / 0", "1 of 2", "1 of 2", "+0.00", "+0.30")
    ]
    assert counted["Switch EMA over EMA"] == [
        *("3", "2 / 1 / 0 / 0", "3 / 0 / 0", "2 of 3", "2 of 3", "+0.50", "+0.30")
    ]
    assert counted["EMA over plain"][:4] == [
        "2",
        "0 / 1 / 1 / 0",
        "1 / 0 / 1",
        "0 of 0",
    ]
    assert counted["plain over EMA"][1:3] == ["0 / 1 / 0 / 0", "0 / 1 / 0"]


def test_what_was_trained_and_its_cost(section):
    line = section.sheets[2].rows[0]
    assert line[1:] == [
        "classification:network=resnet18",
        *("the task's", "-", "7", "-", "accuracy (%)", "9.50"),
    ]


def test_it_says_what_it_is_and_what_is_missing(section):
    text = " ".join(section.paragraphs)
    assert SMALL in text
    assert "Not run with the current recipes: never." in text
    assert "LOSES: 2 trainings not run yet" in text
    assert "TEACHES: seed 1: diverged." in text
    won = "Switch EMA over plain training, ours: helps in 1, hurts in 1, no difference"
    assert f"{won} in 0 and undecided in 0 of 2 rows." in text


def test_it_says_that_small_self_supervised_rows_are_probed(section):
    assert PROBED not in " ".join(section.paragraphs)
    table = TABLES["table-5"]
    section = reproduction_section(table, [], scale="small", command="x")
    assert PROBED in " ".join(section.paragraphs)


def test_the_papers_scale_is_not_called_small():
    section = reproduction_section(TABLE, FOUND, scale="paper", command="x")
    assert SMALL not in section.paragraphs


def test_one_seed_has_no_interval():
    values = {"plain": 90.0, "ema": 90.0, "switch-ema": 91.0}
    one = found(WINS, values, noise={0: 0.0})
    section = reproduction_section(TABLE, [one], scale="small", command="x")
    assert section.sheets[0].rows[3][1:6] == ["91.00", "1", "-", "-", "undecided"]
    assert section.sheets[1].rows == []


def test_a_table_without_runs_says_so():
    section = reproduction_section(TABLE, [], scale="small", command="x")
    assert section.sheets == []
    text = "No row of this table has been run with the current recipes."
    assert section.paragraphs == [SMALL, text]


def test_markdown_holds_every_cell(section):
    command = "switch-ema reproduce --write-docs x.md"
    pages = markdown_pages({"video": [section]}, command, "All.", "x")
    overview, text = pages["x.md"], pages["x/video.md"]
    assert overview.startswith("# Our results") and "\n\nAll.\n\n" in overview
    entry = "- [Table 9: made up](x/video.md#table-9-made-up): Switch EMA over plain"
    assert entry in overview
    assert text.startswith("# Results: video")
    assert "## Table 9: made up" in text
    assert (
        "| switch-ema | 91.00 ± 0.02 | 3 | +1.00 | [+0.95, +1.05] | helps | 77.3 "
        "| +0.5 |" in text
    )
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len(lines) == sum(2 + len(sheet.rows) for sheet in section.sheets)


def test_markdown_escapes_what_divides_cells():
    sheet = Sheet(caption="c", header=["a"], rows=[["x|y"]])
    section = AnalysisSection(key="k", title="t", command="c", sheets=[sheet])
    assert r"| x\|y |" in markdown_pages({"f": [section]}, "c", "", "x")["x/f.md"]


MSE = Metric(name="MSE", higher_is_better=False)
PSNR = Metric(name="PSNR", higher_is_better=True, unit="dB", decimals=1)


def video_row(name, mse, psnr):
    printed = [
        PaperMetric(
            metric=replace(metric, decimals=2),
            values=values_of(METHODS, cells),
            in_percent=True,
        )
        for metric, cells in ((MSE, mse), (PSNR, psnr))
    ]
    return PaperRow(
        name=name, title=name, small=SETTING, paper=SETTING, metrics=tuple(printed)
    )


def video(row, mse, psnr, **more):
    """Make up two metrics, of which the first is better where it is lower."""
    curves = {
        metric.name: {
            method: {seed: [value + sign * e] for seed, e in NOISE.items()}
            for method, value, sign in zip(METHODS, values, (1, -1, 2), strict=True)
        }
        for metric, values in ((MSE, mse), (PSNR, psnr))
    }
    task = TaskSummary(
        task="video",
        description="",
        optimizer="adam",
        epochs=3,
        metrics=(MSE, PSNR),
        curves=curves,
        results={
            metric.name: compare(
                curves[metric.name], higher_is_better=metric.higher_is_better
            )
            for metric in (MSE, PSNR)
        },
        costs=[],
        problems=[],
        **more,
    )
    config = CompareConfig(tasks=("video",), methods=METHODS, optimizer="adam:lr=0.01")
    return ReproducedRow(row=row, task=task, config=config)


SIMVP = video_row("simvp", "32.15 32.14 32.06", "21.84 21.84 21.85")
VIDEO = PaperTable(name="table-x", title="video", rows=(SIMVP,))


@pytest.fixture
def lower():
    """Ours: Switch EMA better (lower) by 2 of 40, EMA worse (higher) by 1."""
    own = video(
        SIMVP,
        (40.0, 41.0, 38.0),
        (20.0, 20.0, 20.5),
        trivial={"mean image": {"MSE": 55.5}},
        origin="from scratch",
    )
    return own, reproduction_section(VIDEO, [own], scale="small", command="x")


def test_where_lower_is_better_a_lower_value_is_a_gain(lower):
    own, section = lower
    found = {(c.method, c.over, c.metric): c for c in contrasts_of(own)}
    switch = found["switch-ema", "plain", "MSE"]
    assert (switch.verdict, switch.paper, switch.agrees) == ("helps", 0.28, True)
    assert switch.ours == pytest.approx(100 * 2 / 40)
    ema = found["ema", "plain", "MSE"]  # printed 0.03% better, ours worse
    assert (ema.verdict, ema.agrees) == ("hurts", False)
    assert found["switch-ema", "ema", "MSE"].paper == 0.25
    text = " ".join(section.paragraphs)
    assert "Switch EMA over plain training, ours: helps in 1, hurts in 0" in text
    assert PERCENT in text


def test_each_metric_has_its_lines_with_gains_in_per_cent(lower):
    _, section = lower
    rows = section.sheets[0].rows
    titles = [row[0] for row in rows if row[1] == ""]
    assert titles == [
        "simvp: MSE, lower is better, gains in %",
        "simvp: PSNR (dB), higher is better, gains in %",
    ]
    # Differences of -2.00 and 0.01 around: +5% of 40, half width 4.303 * 0.01 /
    # sqrt(3) of 40 or 0.06%.
    assert rows[3] == [
        *("switch-ema", "38.000 ± 0.020", "3", "+5.00", "[+4.88, +5.12]", "helps"),
        *("32.06", "+0.28"),
    ]
    assert rows[4] == ["without training: mean image", "55.500", *["-"] * 6]
    assert rows[8][:4] == ["switch-ema", "20.5 ± 0.02", "3", "+2.50"]
    assert len(rows) == 9


def test_metrics_are_counted_apart_and_the_optimizer_is_named(lower):
    _, section = lower
    counted = {row[0]: row[1:] for row in section.sheets[1].rows}
    assert counted["Switch EMA over plain, MSE"][:4] == [
        *("1", "1 / 0 / 0 / 0", "1 / 0 / 0", "1 of 1")
    ]
    assert counted["EMA over plain, PSNR"][1:3] == ["0 / 0 / 1 / 0", "0 / 0 / 1"]
    header, [line] = section.sheets[2].header, section.sheets[2].rows
    assert line[header.index("optimizer")] == "adam:lr=0.01"
    assert line[header.index("initial weights")] == "from scratch"


def test_a_metric_that_is_not_measured_is_told():
    missing = replace(SIMVP.metrics[1], ours="SSIM")
    row = replace(SIMVP, metrics=(SIMVP.metrics[0], missing))
    own = video(row, (40.0, 41.0, 38.0), (20.0, 20.0, 20.5))
    with pytest.raises(UsageError, match="no metric for the paper's PSNR; it meas"):
        list(contrasts_of(own))
