"""Ablations: settings in the place of methods, and which lie within noise."""

from dataclasses import replace

import pytest
from PIL import Image

from switch_ema.averaging.schedules.decay import count_warmup
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.report.sections import load_sections, save_section
from switch_ema.bench.stats.paired import compare
from switch_ema.bench.stats.summary import TaskSummary
from switch_ema.bench.task import Metric
from switch_ema.paper import TABLES
from switch_ema.paper.reproduce.collect import ReproducedRow
from switch_ema.paper.reproduce.presets import RowSettings, row_config
from switch_ema.paper.show.ablation_points import points_of
from switch_ema.paper.show.ablation_section import ablation_section

TABLE_13, FIGURE = TABLES["table-13"], TABLES["figure-decay"]
ACCURACY = Metric(name="accuracy", higher_is_better=True, unit="%")
ERROR = Metric(name="error", higher_is_better=False, decimals=2)
NOISE = {0: (-0.1, 0.2), 1: (0.0, -0.3), 2: (0.1, 0.1), 3: (0.05, 0.0)}
"""By seed: what all settings share, and what odd settings have of their own."""


def found(row, means, metric=ACCURACY):
    """Make up what was found: a mean per method, and noise."""
    curves = {
        method: {
            seed: [mean + shared + (own * index if index % 2 else 0.01 * seed * index)]
            for seed, (shared, own) in NOISE.items()
        }
        for index, (method, mean) in enumerate(zip(row.methods, means, strict=True))
    }
    better = metric.higher_is_better
    task = TaskSummary(
        task="t",
        description="",
        optimizer="sgd",
        epochs=7,
        metrics=(metric,),
        curves={metric.name: curves},
        results={
            metric.name: compare(curves, higher_is_better=better, baseline=row.baseline)
        },
        costs=[],
        problems=[],
    )
    config = CompareConfig(tasks=("t",), methods=row.methods)
    return ReproducedRow(row=row, task=task, config=config)


def section_of(table, rows, folder):
    return ablation_section(table, rows, scale="small", command="x", folder=folder)


def test_table_13_varies_the_interval_of_switch_ema():
    row = next(row for row in TABLE_13.rows if row.name == "wrn28-10")
    small, paper = (
        row_config(row, RowSettings(scale=scale)) for scale in ("small", "paper")
    )
    assert small.methods[0] == row.baseline == "switch-ema:switch_every=1"
    assert paper.methods[1] == "switch-ema:decay=0.99,switch_every=0.5"
    assert row.method_of(paper.methods[1]) == "switch-ema:switch_every=0.5"
    [printed] = row.metrics
    assert printed.value("switch-ema:switch_every=5") == 82.08
    assert printed.gain("switch-ema:switch_every=5", row.baseline) == -0.27


def test_the_papers_tasks_are_there():
    assert len(TABLE_13.rows) == 7 and len(FIGURE.rows) == 10
    best = [max, max, max, max, min, min, max]
    for row, choose in zip(TABLE_13.rows, best, strict=True):
        [printed] = row.metrics
        values = {cell.method: cell.value for cell in printed.values}
        expected = "5" if row.name == "cifar10" else "1"  # set in bold
        assert choose(values, key=values.get).endswith(f"={expected}")


def test_the_figure_varies_both_decays_over_plain_training():
    row = FIGURE.rows[0]
    config = row_config(row, RowSettings(scale="paper"))
    assert config.methods == row.methods  # each has its own decay
    assert row.methods[0] == "plain" and len(row.methods) == 9
    assert FIGURE.setting_of("switch-ema:decay=0.99999") == ("switch-ema", 0.99999)


def test_at_the_small_scale_the_figure_has_decays_that_few_steps_tell_apart():
    small = row_config(FIGURE.rows[0], RowSettings())
    assert small.methods[0] == "plain" and len(small.methods) == 9
    values = [FIGURE.setting_of(method)[1] for method in small.methods[1:]]
    assert values == 2 * [0.5, 0.8, 0.95, 0.98]
    reached = [next(n for n in range(999) if count_warmup(d)(n) == d) for d in values]
    assert max(reached) == 440


def test_settings_within_noise_are_told_from_worse_ones():
    # T = 1 is the best, T = 0.5 within noise of it, 2 and 5 clearly worse.
    own = found(TABLE_13.rows[0], (91.0, 90.95, 89.0, 80.0))
    points = points_of(TABLE_13, own.task, own.task.metrics[0])
    assert list(points) == ["switch-ema"]
    told = [(p.value, p.is_best, p.within_noise) for p in points["switch-ema"]]
    assert told == [
        (0.5, False, True),
        (1.0, True, True),
        (2.0, False, False),
        (5.0, False, False),
    ]


def test_where_lower_is_better_the_lowest_is_the_best():
    own = found(TABLE_13.rows[0], (91.0, 90.95, 89.0, 80.0), ERROR)
    points = points_of(TABLE_13, own.task, own.task.metrics[0])["switch-ema"]
    assert [p.value for p in points if p.is_best] == [5.0]
    assert [p.value for p in points if p.within_noise is False] == [0.5, 1.0, 2.0]


def test_the_heat_map_and_its_section(tmp_path):
    rows = [
        found(TABLE_13.rows[0], (91.0, 90.95, 89.0, 80.0)),
        found(TABLE_13.rows[1], (1.0, 1.2, 0.5, 0.9), ERROR),
    ]
    section = section_of(TABLE_13, rows, tmp_path)
    noise = section.sheets[1]
    assert noise.rows[0] == [
        *("CIFAR-100 Cls: WRN-28-10, switch-ema", "T = 1", "91.01", "4", "0.5"),
        "2, 5",
    ]
    assert "T = 2 in 1 of 2" in section.paragraphs[-1]
    _is_drawn(section, tmp_path)


def test_the_curves_have_a_panel_for_each_task(tmp_path):
    means = (88.0, 89.0, 89.5, 90.0, 90.0, 88.0, 90.5, 91.0, 60.0)
    rows = [found(row, means) for row in FIGURE.rows[:4]]
    section = section_of(FIGURE, rows, tmp_path)
    assert len(section.sheets[1].rows) == 2 * 4
    assert "decay = 0.9999 in " in section.paragraphs[-1]
    _is_drawn(section, tmp_path)


def _is_drawn(section, folder):
    """The picture is a file with content, and becomes part of a page."""
    [picture] = section.pictures
    png = Image.open(folder / "figures" / f"{picture.name}.png").convert("L")
    assert len(png.getcolors()) > 20
    save_section(section, folder)
    [loaded] = load_sections(folder)
    assert loaded.pictures[0].source.startswith("data:image/svg+xml;base64,")


def test_one_seed_says_nothing_about_noise(tmp_path):
    own = found(TABLE_13.rows[0], (91.0, 90.95, 89.0, 80.0))
    curves = {m: {0: seeds[0]} for m, seeds in own.task.curves["accuracy"].items()}
    results = compare(curves, higher_is_better=True, baseline=own.row.baseline)
    task = replace(own.task, curves={"accuracy": curves}, results={"accuracy": results})
    section = section_of(TABLE_13, [replace(own, task=task)], tmp_path)
    assert section.sheets[1].rows[0][4:] == ["too few seeds", "-"]


@pytest.mark.parametrize("table", [TABLE_13, FIGURE], ids=lambda table: table.name)
def test_an_ablation_without_runs_has_no_picture(table, tmp_path):
    section = section_of(table, [], tmp_path)
    assert section.pictures == [] and section.sheets == []
