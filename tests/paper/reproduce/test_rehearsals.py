"""Stored rehearsals and the hours that follow from them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from switch_ema.bench.plan.cells import make_plan
from switch_ema.bench.train.rehearsal import CellRehearsal
from switch_ema.paper.reproduce import rehearsals
from switch_ema.paper.reproduce.plan import plan_rows, select_tables
from switch_ema.paper.reproduce.presets import RowSettings
from switch_ema.paper.reproduce.rehearsals import (
    Rehearsal,
    estimated_hours,
    load_rehearsal,
    rehearsed_hours,
    save_rehearsal,
    this_machine,
)

MEASURED = CellRehearsal(
    network="ResNet, 11,220,132 parameters",
    device="cpu",
    batch=2,
    start_seconds=3.0,
    step_seconds=0.5,
    loop_seconds=0.6,
    input_rate=1000.0,
    evaluated=10,
    evaluate_seconds=0.2,
    last_seconds=0.4,
    checkpoint_mb=135.0,
    save_seconds=0.5,
    resume_seconds=0.5,
    state_mb=180.0,
    activations_mb=4.7,
    flops=3.3e9,
    process_mb=1300.0,
    device_mb=None,
    values={"accuracy": 1.0},
)


@pytest.fixture
def plan():
    settings = RowSettings(scale="paper", seeds=1)
    (only,) = plan_rows(
        select_tables(["table-3"]), ("resnet18",), settings, Path("none")
    )
    return only


@pytest.fixture
def rehearsal(plan):
    return Rehearsal(
        table="table-3",
        row="resnet18",
        task=plan.config.tasks[0],
        data="generated",
        missing=("cifar100",),
        machine=this_machine(),
        when="2026-11-18",
        seconds=10.0,
        measured=MEASURED,
    )


def test_a_rehearsal_is_stored_and_read(tmp_path, rehearsal):
    save_rehearsal(tmp_path, rehearsal)
    assert load_rehearsal(tmp_path, "table-3", "resnet18") == rehearsal
    assert load_rehearsal(tmp_path, "table-3", "resnet101") is None


@pytest.mark.parametrize("text", ["", "{}", '{"version": 99}', "[]"])
def test_a_file_that_is_none_is_ignored(tmp_path, rehearsal, text):
    save_rehearsal(tmp_path, rehearsal).write_text(text)
    assert load_rehearsal(tmp_path, "table-3", "resnet18") is None


def test_hours_by_hand(plan, rehearsal):
    cell = make_plan(plan.config)[0]
    assert cell.methods == ("plain", "ema:decay=0.99")
    # 200 epochs of 50,000 images at 0.3 s each; after each epoch, both methods
    # evaluate 10,000 images at 0.02 s each, and at 0.04 s after the last one.
    seconds = 200 * 50_000 * 0.3 + 2 * 10_000 * (199 * 0.02 + 0.04)
    assert estimated_hours(rehearsal, [cell]) == pytest.approx(seconds / 3600)
    # Four cells: SWA has 250 epochs, the other two methods 200.
    all_epochs = sum(one.recipe.epochs for one in make_plan(plan.config))
    assert all_epochs == 200 + 250 + 200 + 200


def test_a_slow_input_pipeline_sets_the_pace(plan, rehearsal):
    slow = replace(rehearsal, measured=replace(MEASURED, input_rate=0.1))
    cell = make_plan(plan.config)[0]
    more = estimated_hours(slow, [cell]) - estimated_hours(rehearsal, [cell])
    assert more == pytest.approx(200 * 50_000 * (10 - 0.3) / 3600)


def test_smaller_images_and_failures_give_no_hours(plan, rehearsal):
    cells = make_plan(plan.config)
    assert estimated_hours(replace(rehearsal, side=32), cells) is None
    assert estimated_hours(replace(rehearsal, measured=None), cells) is None


def test_only_rehearsals_of_the_same_task_and_machine_count(
    tmp_path, plan, rehearsal, monkeypatch
):
    assert rehearsed_hours(plan, tmp_path) is None
    save_rehearsal(tmp_path, rehearsal)
    assert rehearsed_hours(plan, tmp_path) == estimated_hours(
        rehearsal, make_plan(plan.config)
    )
    save_rehearsal(tmp_path, replace(rehearsal, task="classification:scale=paper"))
    assert rehearsed_hours(plan, tmp_path) is None
    save_rehearsal(tmp_path, rehearsal)
    monkeypatch.setattr(rehearsals, "this_machine", lambda: "another")
    assert rehearsed_hours(plan, tmp_path) is None


def test_json_has_everything(rehearsal):
    stored = json.loads(json.dumps(rehearsal.to_json()))
    assert stored["measured"]["flops"] == 3.3e9
    assert Rehearsal.from_json(stored) == rehearsal
