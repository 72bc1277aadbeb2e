"""Stored rows: one that an older recipe trained is named instead of shown."""

from dataclasses import replace

import pytest

from switch_ema.bench.compare import run_comparison
from switch_ema.bench.execute.options import RunOptions
from switch_ema.bench.recipe import Metric
from switch_ema.paper.reproduce.collect import StoredRows
from switch_ema.paper.reproduce.plan import plan_row
from switch_ema.paper.reproduce.presets import RowSettings
from switch_ema.paper.tables.table import (
    PaperMetric,
    PaperRow,
    PaperTable,
    RowSetting,
    values_of,
)
from switch_ema.zoo.tasks.toy.digits import Digits

SETTING = RowSetting(task="digits", options={"size": 40}, epochs=1)
ACCURACY = Metric(name="accuracy", higher_is_better=True)


def trained(out, *, budget: bool) -> tuple[PaperTable, StoredRows]:
    """Train a row with SWA, with or without its budget."""
    metric = PaperMetric(metric=ACCURACY, values=values_of(("plain", "swa"), "1 2"))
    row = PaperRow(
        name="one", title="One", small=SETTING, paper=SETTING, metrics=(metric,)
    )
    table = PaperTable(name="table-99", title="Digits", rows=(row,))
    plan = plan_row(table, row, RowSettings(seeds=1), out)
    config = plan.config if budget else replace(plan.config, methods=("plain", "swa"))
    options = RunOptions(
        out=plan.folder.parent, name=plan.folder.name, executor="inline"
    )
    assert run_comparison(config, options).error is None
    return table, StoredRows(out, "small")


@pytest.mark.parametrize("change", ["nothing", "revision", "budget"])
def test_only_rows_of_the_current_recipe_are_shown(change, tmp_path, monkeypatch):
    table, stored = trained(tmp_path, budget=change != "budget")
    if change == "revision":
        monkeypatch.setattr(Digits, "recipe", replace(Digits.recipe, revision=1))
    told = "One is omitted: it was trained by an older recipe; delete its results and "
    told += "train it again."
    assert stored.problems(table) == ([] if change == "nothing" else [told])
    assert len(stored.of(table)) == (1 if change == "nothing" else 0)
