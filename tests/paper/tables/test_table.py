"""The paper's tables: their numbers, names and baselines."""

from dataclasses import replace

import pytest

from switch_ema.bench.method_names import DESCRIPTIONS
from switch_ema.bench.optimizers.catalog import OPTIMIZERS
from switch_ema.bench.plan.task_snapshot import facts_of
from switch_ema.bench.recipe import Metric
from switch_ema.bench.spec import parse_spec
from switch_ema.paper import TABLES
from switch_ema.paper.reproduce.presets import SCALES, RowSettings, row_config
from switch_ema.paper.tables.selfsupervised import SELF_TEACHING
from switch_ema.paper.tables.table import PaperMetric, PaperTable, values_of
from switch_ema.zoo.models.catalog import NETWORKS
from switch_ema.zoo.models.video import VIDEO_NETWORKS

ROWS = [
    pytest.param(table, row, id=f"{table.name}-{row.name}")
    for table in TABLES.values()
    for row in table.rows
]
METRICS = [
    pytest.param(table, row, one, id=f"{table.name}-{row.name}-{one.metric.name}")
    for table in TABLES.values()
    for row in table.rows
    for one in row.metrics
]
# Metrics, then sums over them of each printed column, the printed gains last.
SUMS = {
    "table-2": (14, {"plain": 1104.5, "ema": 1106.9, "switch-ema": 1109.6}, 4.8),
    "table-3": (
        13,
        {
            "plain": 991.61,
            "ema": 998.10,
            "swa": 995.80,
            "lookahead": 994.22,
            "switch-ema": 1001.89,
        },
        10.28,
    ),
    "table-4": (
        14,
        {"plain": 1045.99, "ema": 1032.50, "swa": 1009.75, "switch-ema": 1118.65},
        10.38,
    ),
    "table-5": (
        4,
        {"plain": 300.40, "ema": 308.86, "swa": 302.05, "switch-ema": 309.61},
        0.88,
    ),
    # Boxes and masks together.
    "table-6": (6, {"plain": 239.2, "ema": 240.8, "switch-ema": 242.8}, 3.6),
    "table-7": (
        3,
        {"plain": 116.6, "ema": 119.6, "swa": 119.1, "switch-ema": 120.3},
        1.2,
    ),
    "table-8": (
        2,
        {
            "plain": 15.07,
            "ema": 12.92,
            "swa": 13.88,
            "lookahead": 14.51,
            "switch-ema": 12.41,
        },
        0.51,
    ),
    # MSE and PSNR of four rows.
    "table-9": (8, {"plain": 202.62, "ema": 203.09, "switch-ema": 202.52}, 1.37),
    # MAE and RMSE of six rows; their gains are in per cent.
    "table-10": (
        12,
        {"plain": 139.13, "ema": 136.79, "swa": 139.40, "switch-ema": 135.35},
        33.10,
    ),
    "table-11": (
        3,
        {"plain": 201.0, "ema": 200.6, "swa": 200.5, "switch-ema": 200.0},
        1.0,
    ),
    "table-12": (
        2,
        {"plain": 98.18, "ema": 97.92, "swa": 97.98, "switch-ema": 97.92},
        0.66,
    ),
}
FIRST = ("table-2", "table-3", "table-4", "table-5")
"""Tables of one accuracy each, in which Switch EMA is always printed as the best."""


@pytest.mark.parametrize("name", SUMS)
def test_columns_have_the_sums_of_the_printed_ones(name):
    rows, columns, gains = SUMS[name]
    metrics = [
        one for row in TABLES[name].rows for one in row.metrics if one.is_printed
    ]
    assert len(metrics) == rows
    assert {cell.method for one in metrics for cell in one.values} == columns.keys()
    for method, total in columns.items():
        assert sum(one.value(method) for one in metrics) == pytest.approx(total)
    assert sum(one.printed_gain for one in metrics) == pytest.approx(gains)


@pytest.mark.parametrize(("table", "row", "printed"), METRICS)
def test_printed_gains_follow_from_the_values_or_say_why_not(table, row, printed):
    if printed.printed_gain is not None:
        gain = printed.gain("switch-ema", row.baseline)
        follows = abs(gain - printed.printed_gain) < 0.0151  # rounded twice
        assert follows is not bool(printed.misprint)


def test_the_one_misprint_of_the_first_tables():
    [(row, printed)] = [
        (row, one)
        for name in FIRST
        for row in TABLES[name].rows
        for one in row.metrics
        if one.misprint
    ]
    assert row.name == "resnet50-lars"
    assert printed.gain("switch-ema", "ema") == printed.printed_gain == 0.1
    assert printed.gain("switch-ema", "plain") == 0.4


@pytest.mark.parametrize(("table", "row", "printed"), METRICS)
def test_values_have_the_printed_decimals(table, row, printed):
    values = {cell.method: cell.value for cell in printed.values if cell.value}
    assert all(value == round(value, printed.decimals) for value in values.values())
    if table.name in FIRST and values:
        assert max(values, key=values.get) == "switch-ema"


@pytest.mark.parametrize(("table", "row"), ROWS)
def test_names_are_those_of_the_bench(table, row):
    for scale in SCALES:
        setting = row.setting(scale)
        tasks = row_config(row, RowSettings(scale=scale)).tasks
        assert len(tasks) == max(len(setting.variants), 1)
        facts = facts_of(tasks[0])
        known = {metric.name: metric for metric in facts.metrics}
        for position, printed in enumerate(row.metrics):
            ours = printed.ours or facts.metrics[position].name
            better = known[ours].higher_is_better
            assert better == printed.metric.higher_is_better
        if setting.optimizer is not None:
            assert parse_spec(setting.optimizer).name in OPTIMIZERS
        network = setting.options.get("network", "resnet18")
        assert network in {**NETWORKS, **VIDEO_NETWORKS}
    assert {parse_spec(method).name for method in row.methods} <= DESCRIPTIONS.keys()
    assert {cell.method for cell in row.metrics[0].values} <= table.columns.keys()
    assert row.methods[0] == row.baseline
    if table.name in FIRST:
        teaches = row.small.task in SELF_TEACHING
        assert row.baseline == ("ema" if teaches else "plain")


def test_single_cells():
    table_2 = {row.name: row for row in TABLES["table-2"].rows}
    assert table_2["deit-b-lamb"].metrics[0].value("ema") == 77.3
    assert table_2["deit-b-lamb"].title == "DeiT-B, LAMB, 100ep"
    table_4 = {row.name: row for row in TABLES["table-4"].rows}
    [moco] = table_4["moco-v3-cifar100"].metrics
    assert (moco.value("plain"), moco.gain("plain", "ema")) == (38.09, -8.7)
    assert moco.value("lookahead") is None and moco.gain("lookahead", "ema") is None


def printed(cells, *, higher_is_better, in_percent=False):
    metric = Metric(name="m", higher_is_better=higher_is_better, decimals=2)
    values = values_of(("plain", "ema", "switch-ema"), cells)
    return PaperMetric(metric=metric, values=values, in_percent=in_percent)


def test_gains_are_oriented_by_the_metric():
    lower = printed("32.15 32.14 32.06", higher_is_better=False)
    assert lower.gain("switch-ema", "plain") == 0.09
    assert lower.gain("plain", "ema") == -0.01
    higher = printed("32.15 32.14 32.06", higher_is_better=True)
    assert higher.gain("switch-ema", "plain") == -0.09


def test_gains_in_per_cent_are_relative_to_the_baseline():
    """As Table 9 prints them: (32.15 - 32.06) / 32.15 is 0.28%."""
    mse = printed("32.15 32.14 32.06", higher_is_better=False, in_percent=True)
    assert mse.gain("switch-ema", "plain") == 0.28
    psnr = printed("21.84 21.84 21.85", higher_is_better=True, in_percent=True)
    assert psnr.gain("switch-ema", "plain") == 0.05
    assert (mse.decimals, mse.gain_decimals) == (2, 2)


def test_generation_is_compared_with_ema_and_video_with_plain_training():
    cifar10, celeba = TABLES["table-8"].rows
    assert cifar10.methods[0] == celeba.baseline == "ema"
    [fid] = celeba.metrics
    assert fid.gain("switch-ema", "ema") == fid.printed_gain == 0.38
    assert fid.gain("plain", "ema") == -0.41
    for row in TABLES["table-9"].rows:
        assert row.baseline == "plain"
        assert [one.metric.name for one in row.metrics] == ["MSE", "PSNR"]


def test_oddities_of_the_regression_table():
    rows = {row.name: row for row in TABLES["table-10"].rows}
    mae, rmse = rows["imdb-wiki-resnet50"].metrics
    assert mae.gain("switch-ema", "plain") == -0.40, "printed as a gain of 0.40"
    assert rmse.gain("switch-ema", "plain") > 0
    _, rmse = rows["rcf-mnist-resnet18"].metrics
    assert rmse.gain("switch-ema", "plain") == 1.87, "printed as 1.79"
    _, rmse = rows["rcf-mnist-resnet50"].metrics
    assert rmse.value("ema") < rmse.value("switch-ema"), "which is printed in bold"


def test_each_lstm_row_has_its_optimizer():
    rows = TABLES["table-11"].rows
    for scale in ("small", "paper"):
        specs = [parse_spec(row.setting(scale).optimizer) for row in rows]
        assert [spec.name for spec in specs] == ["sgd", "adam", "adabelief"]
        assert [spec.options["lr"] for spec in specs] == [30, 0.01, 0.01]
        assert specs[0].options["momentum"] == 0


def test_a_cell_for_each_method():
    with pytest.raises(ValueError):
        values_of(("plain", "ema"), "1.0")


def test_metrics_of_a_row_have_the_same_methods():
    row = TABLES["table-5"].rows[0]
    other = printed("1 2 3", higher_is_better=True)
    with pytest.raises(ValueError, match="metrics of byol have different methods"):
        replace(row, metrics=(*row.metrics, other))
    with pytest.raises(ValueError, match="byol has no value of 'lawa'"):
        replace(row, baseline="lawa")


def test_rows_have_names_of_their_own():
    row = TABLES["table-5"].rows[0]
    with pytest.raises(ValueError, match=r"mine has two rows called byol\."):
        PaperTable(name="mine", title="", rows=(row, row))
