"""A comparison with rounded weights: its tables, its page, and what it is stored as."""

import csv
import dataclasses
import io
import json
from statistics import fmean

import pytest

from switch_ema.bench.compare import summarize_run
from switch_ema.bench.errors import UsageError
from switch_ema.bench.plan.cells import make_plan
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.report.rounding import rounding_change, rounding_sheets
from switch_ema.bench.report.tables import FORMATS
from tests.bench.test_compare import run, table


@pytest.fixture
def rounding(config):
    """A comparison whose final weights are rounded, too."""
    return dataclasses.replace(
        config, methods=("plain", "ema:decay=0.9"), deploy="int8,int4"
    )


def test_gaps_and_changes_are_paired_by_seed(rounding, tmp_path):
    path, text = run(rounding, tmp_path)
    summary = summarize_run(path.parent)
    [task] = summary.tasks
    names = ["error", "slope", "error (int8)", "error (int4)"]
    assert [metric.name for metric in task.metrics] == names
    sheets = rounding_sheets(task)
    assert [sheet.caption.partition(";")[0] for sheet in sheets] == [
        "Final weights rounded to int8",
        "Final weights rounded to int4",
    ]
    for kind, sheet in zip(("int8", "int4"), sheets, strict=True):
        assert [row[0] for row in sheet.rows] == list(rounding.methods)
        for result in task.results[f"error ({kind})"]:
            before, after = (
                {
                    seed: own[-1]
                    for seed, own in task.curves[name][result.method].items()
                }
                for name in ("error", f"error ({kind})")
            )
            change = rounding_change(task, result.method, kind)
            # Lower is better, so a larger error is a negative change.
            assert change.mean == pytest.approx(
                fmean(before[s] - after[s] for s in before)
            )
            assert change.n == 2 and change.low < change.mean < change.high
    assert "Final weights rounded to int4; the change is from" in text
    page = path.read_text()
    assert "After rounding the weights" in page
    # One value has no curve.
    assert page.count('class="curve"') == 2
    rows = list(csv.DictReader(io.StringIO(FORMATS["csv"](summary))))
    assert [row["metric"] for row in rows] == [name for name in names for _ in range(2)]


def test_one_seed_has_no_interval(rounding, tmp_path):
    path, _ = run(dataclasses.replace(rounding, seeds=1), tmp_path)
    [task] = summarize_run(path.parent).tasks
    assert [row[2:] for row in rounding_sheets(task)[0].rows] == 2 * [["-", "-", "1"]]


def test_the_roundings_belong_to_the_run_and_added_seeds_keep_them(rounding, tmp_path):
    whole = table(run(dataclasses.replace(rounding, seeds=3), tmp_path / "whole")[0])
    path, _ = run(rounding, tmp_path)
    assert (
        json.loads((path.parent / "config.json").read_text())["deploy"] == "int8,int4"
    )
    again, text = run(dataclasses.replace(rounding, seeds=3), tmp_path)
    assert again == path and "The run has 2 seeds so far; 1 are added." in text
    assert repr(table(path)) == repr(whole)
    without = dataclasses.replace(rounding, deploy=None)
    assert without.default_name != rounding.default_name
    assert "deploy" not in without.to_json()  # runs stored before keep their names


@pytest.mark.parametrize("given", ["int3", "int8,,int4", "int8,int8", "BF16", "int8;"])
def test_other_roundings_are_refused_with_the_known_ones(given):
    message = "^deploy must list some of bf16, int8, int4, once each and separated by "
    with pytest.raises(UsageError, match=message) as refused:
        CompareConfig(deploy=given)
    assert str(refused.value).endswith(f"got {given!r}.")
    with pytest.raises(UsageError, match=r"^deploy must name a rounding"):
        CompareConfig(deploy="")


def test_networks_in_layouts_of_their_own_are_refused():
    config = CompareConfig(tasks=("moons",), deploy="int8")
    with pytest.raises(UsageError, match="moons trains its seeds stacked in layouts"):
        make_plan(config)
