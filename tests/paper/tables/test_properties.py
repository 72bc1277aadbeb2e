"""Table 1: the paper's ticks, and what is measured beside them."""

from contextlib import closing
from dataclasses import replace
from statistics import fmean

import pytest
import torch

from switch_ema.bench.analyses import steps
from switch_ema.bench.analyses.steps import Contestant, measure_steps
from switch_ema.bench.results.folder import open_run
from switch_ema.bench.stats.summarize import summarize
from switch_ema.bench.train.memory import storages
from switch_ema.paper import TABLES
from switch_ema.paper.reproduce.collect import StoredRows
from switch_ema.paper.reproduce.plan import plan_rows
from switch_ema.paper.reproduce.presets import RowSettings
from switch_ema.paper.reproduce.run import run_rows
from switch_ema.paper.show import property_section
from switch_ema.paper.show.sections import part_section
from tests.paper.reproduce.test_run import OPTIONS

TABLE = TABLES["table-1"]


@pytest.fixture
def short(monkeypatch):
    """Digits alone, with two seeds and few steps in all measurements."""
    monkeypatch.setattr(property_section, "SHARP_SEEDS", 1)
    quickly = {"rounds": 1, "steps": 1}
    monkeypatch.setattr(
        property_section,
        "measure_steps",
        lambda task, contestants: measure_steps(task, contestants, **quickly),
    )
    rows = tuple(row for row in TABLE.rows if row.name.startswith("digits"))
    return replace(TABLE, rows=rows, tasks=("digits",), seeds=2)


def test_ticks_are_the_papers():
    ticks = {
        p.method: (p.pluggable, p.free_gains, p.speed_up, p.property)
        for p in TABLE.promises
    }
    assert ticks["sam"] == (True, False, False, "sharpness")
    assert ticks["sasam"] == (False, False, False, "both")
    assert ticks["switch-ema"] == (True, True, True, "both")
    assert [method for method, told in ticks.items() if told[2]] == [
        *("adan", "lookahead", "ema", "switch-ema")
    ]


def test_everything_is_measured_beside_the_ticks(short, tmp_path):
    plans = plan_rows([short], (), RowSettings(epochs=1), tmp_path)
    assert all(done.error is None for done in run_rows(plans, OPTIONS))
    section = part_section(short, StoredRows(tmp_path, "small"), "x")
    gains, properties = section.sheets
    names = ["plain", "SAM", "SASAM", "Adan", "Lookahead", "SWA", "EMA", "Switch EMA"]
    assert [row[0] for row in gains.rows] == names
    assert [row[0] for row in properties.rows] == names
    assert gains.rows[1][1:4] == ["yes", "no", "no"]
    assert all(row[7] == "2" for row in gains.rows)
    assert gains.rows[0][8] == "baseline" and gains.rows[7][8] == "undecided"
    # In model sizes: SAM keeps a copy, SASAM an average as well, Adan three states
    # and the last gradient where SGD has one.
    memory = {row[0]: float(row[3]) for row in properties.rows}
    assert memory == {
        **{"plain": 0, "SAM": 1, "SASAM": 2, "Adan": 3},
        **dict.fromkeys(("Lookahead", "SWA", "EMA", "Switch EMA"), 1),
    }
    for row in properties.rows:
        assert all(float(cell) > 0 for cell in row[4:8]), row
    # The change by rounding, paired by seed, from the values that the run stored.
    assert properties.header[8] == "int4"
    config, results = open_run(tmp_path / "reproduce-table-1" / "digits-sgd")
    with closing(results):
        (task,) = summarize(config, results, "x").tasks
    before, after = (task.curves[n]["plain"] for n in ("accuracy", "accuracy (int4)"))
    change = fmean(after[seed][-1] - before[seed][-1] for seed in before)
    assert properties.rows[0][8].startswith(f"{change:+.1f}"), (change, properties.rows)


def test_what_is_not_trained_is_told(short, tmp_path):
    section = part_section(short, StoredRows(tmp_path, "small"), "x")
    assert section.sheets == []
    assert section.paragraphs == [
        "No row of this table has been run with the current recipes."
    ]


def test_contestants_take_turns(monkeypatch):
    turns = []
    take = steps._Steps.take

    def noted(self, count, *others):
        turns.append((self.name, count))
        return take(self, count, *others)

    monkeypatch.setattr(steps._Steps, "take", noted)
    both = [Contestant("a", None, "plain"), Contestant("b", None, "ema")]
    found = measure_steps("digits", both, rounds=2, steps=3)
    counted = [name for name, count in turns if count == 3]
    assert counted == ["a", "b"] * 3  # and one round before
    assert all(cost.seconds > 0 for cost in found.values())
    assert found["b"].bytes - found["a"].bytes == found["a"].weights


def test_tensors_without_a_storage_elsewhere_in_the_process_do_not_count():
    sparse = torch.eye(2).to_sparse()
    dense = torch.ones(3)
    held = steps._held_tensors()
    assert any(one is dense for one in held)
    assert storages(held) >= storages([dense]) and storages([sparse]) == set()
