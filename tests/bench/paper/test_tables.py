"""The paper's tables: their numbers, names and baselines."""

import pytest

from switch_ema.bench.models.catalog import NETWORKS
from switch_ema.bench.optimizers.catalog import OPTIMIZERS
from switch_ema.bench.paper import COLUMNS, TABLES
from switch_ema.bench.paper.selfsupervised import SELF_TEACHING
from switch_ema.bench.paper.tables import PaperTable, values_of

ROWS = [
    pytest.param(table, row, id=f"{table.name}-{row.name}")
    for table in TABLES.values()
    for row in table.rows
]
# Rows, then sums over rows of each printed column, the printed gains last.
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
}
MISPRINTED = {"resnet50-lars": 0.4}
"""The one gain that is not the difference of its cells, and that difference."""


@pytest.mark.parametrize("name", SUMS)
def test_columns_have_the_sums_of_the_printed_ones(name):
    rows, columns, gains = SUMS[name]
    table = TABLES[name]
    assert len(table.rows) == rows
    assert {cell.method for row in table.rows for cell in row.values} == columns.keys()
    for method, total in columns.items():
        assert sum(row.value(method) for row in table.rows) == pytest.approx(total)
    assert sum(row.printed_gain for row in table.rows) == pytest.approx(gains)


@pytest.mark.parametrize(("table", "row"), ROWS)
def test_printed_gains_are_differences_to_the_baseline(table, row):
    difference = row.gain("switch-ema")
    assert difference == MISPRINTED.get(row.name, row.printed_gain)
    if row.name in MISPRINTED:
        assert row.gain("switch-ema", "ema") == row.printed_gain


@pytest.mark.parametrize(("table", "row"), ROWS)
def test_values_have_the_printed_decimals_and_switch_ema_is_the_best(table, row):
    values = {cell.method: cell.value for cell in row.values}
    assert all(value == round(value, table.decimals) for value in values.values())
    assert max(values, key=values.get) == "switch-ema"


@pytest.mark.parametrize(("table", "row"), ROWS)
def test_names_are_those_of_the_bench(table, row):
    assert row.network in NETWORKS
    assert row.pretraining or row.optimizer in OPTIMIZERS
    assert {cell.method for cell in row.values} <= COLUMNS.keys()
    assert row.methods[0] == row.baseline
    assert sorted(row.methods) == sorted(cell.method for cell in row.values)
    assert row.baseline == ("ema" if row.pretraining in SELF_TEACHING else "plain")


def test_single_cells():
    table_2 = {row.name: row for row in TABLES["table-2"].rows}
    assert table_2["deit-b-lamb"].value("ema") == 77.3
    assert table_2["deit-b-lamb"].title == "DeiT-B, LAMB, 100ep"
    table_4 = {row.name: row for row in TABLES["table-4"].rows}
    moco = table_4["moco-v3-cifar100"]
    assert (moco.value("plain"), moco.gain("plain")) == (38.09, -8.7)
    assert moco.value("lookahead") is None and moco.gain("lookahead") is None


def test_a_cell_for_each_method():
    with pytest.raises(ValueError):
        values_of(("plain", "ema"), "1.0")


def test_rows_have_names_of_their_own():
    row = TABLES["table-5"].rows[0]
    with pytest.raises(ValueError, match=r"mine has two rows called byol\."):
        PaperTable(name="mine", title="", decimals=1, rows=(row, row))
