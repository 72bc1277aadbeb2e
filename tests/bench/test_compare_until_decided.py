"""Seeds are added until every verdict is settled, and no longer."""

import dataclasses
import json
import random

import pytest

from switch_ema.bench import compare
from switch_ema.bench.compare import first_look, run_comparison, summarize_run
from switch_ema.bench.errors import UsageError
from switch_ema.bench.execute.options import RunOptions
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.results.looks import load_looks
from switch_ema.bench.results.store import Results
from switch_ema.bench.train.result import CellResult
from tests.bench.test_compare import Killed, run

CLEAR = CompareConfig(
    tasks=("noisy-digits", "digits"),
    methods=("plain", "ema", "switch-ema"),
    stack="auto",
    until_decided=True,
    smallest_effect=1.0,
)
# Means and spreads of the differences: large, of a certain size, or hardly any.
EFFECTS = {
    "noisy-digits": {"ema": (9.0, 1.0), "switch-ema": (20.0, 1.0)},
    "digits": {"ema": (0.8, 1.2), "switch-ema": (0.0, 0.3)},
}


@pytest.fixture
def trained(monkeypatch):
    """Replace training by random values; return the cells that were trained."""
    cells = []

    def train_cells(todo, *arguments, **options):
        for cell in todo:
            cells.append(cell)
            effects = EFFECTS.get(cell.task, EFFECTS["digits"])
            values = {}
            for method in cell.methods:
                mean, sd = effects.get(method, (0.0, 0.0))
                draws = [
                    60 + seed % 7 + random.Random(f"{method} {seed}").gauss(mean, sd)
                    for seed in cell.seeds
                ]
                names = ("accuracy", "nll", "ece")
                values[method] = {name: [draws] for name in names}
            yield cell, CellResult(values=values)

    monkeypatch.setattr(compare, "train_cells", train_cells)
    return cells


def trained_until(config, folder, **more):
    options = RunOptions(out=folder, executor="inline", **more)
    return run_comparison(dataclasses.replace(config, epochs=1), options)


def looks_of(done):
    return {task.task: task.looks for task in done.summary.tasks}


def test_a_task_stops_when_it_is_settled_and_the_others_go_on(trained, tmp_path):
    done = trained_until(CLEAR, tmp_path)
    assert done.error is None
    noisy, digits = done.summary.tasks
    # Two methods are decided by no fewer than 13 seeds, so by 16 in rounds of 4.
    assert noisy.looks == (16,) and noisy.unsettled() == []
    assert digits.looks == tuple(range(16, digits.looks[-1] + 1, 4))
    assert 16 < digits.looks[-1] < 64 and digits.unsettled() == []
    for task in done.summary.tasks:
        assert task.sequential and task.missing == 0
        for result in task.results["accuracy"]:
            assert result.last.n == task.looks[-1]
    assert {cell.task for cell in trained if cell.seeds[0] >= 16} == {"digits"}
    # The stored run says the same, and the same command has nothing left to do.
    assert looks_of(done) == {t.task: t.looks for t in summarize_run(done.folder).tasks}
    trained.clear()
    again = trained_until(CLEAR, tmp_path)
    assert looks_of(again) == looks_of(done) and not trained
    assert [t.results for t in again.summary.tasks] == [
        t.results for t in done.summary.tasks
    ]


def test_every_verdict_uses_intervals_valid_at_every_look(trained, tmp_path):
    done = trained_until(CLEAR, tmp_path)
    fixed = dataclasses.replace(CLEAR, until_decided=False, seeds=16)
    other = trained_until(fixed, tmp_path / "fixed")
    mine, theirs = (run.summary.tasks[0] for run in (done, other))
    for ours, usual in zip(
        mine.results["accuracy"][1:], theirs.results["accuracy"][1:], strict=True
    ):
        assert ours.difference.mean == usual.difference.mean
        assert ours.difference.low < usual.difference.low
        assert ours.difference.high > usual.difference.high
        assert ours.difference.p > usual.difference.p
    wide, narrow = (task.switch_ema_against("ema")[2] for task in (mine, theirs))
    assert wide.sequential and wide.low < narrow.low
    assert not theirs.sequential and theirs.looks == ()


def test_it_stops_undecided_at_the_maximum_which_can_be_raised(trained, tmp_path):
    config = dataclasses.replace(CLEAR, tasks=("digits",), max_seeds=18)
    done = trained_until(config, tmp_path)
    assert looks_of(done) == {"digits": (16, 18)}
    assert "ema" in done.summary.tasks[0].unsettled()
    trained.clear()
    more = trained_until(dataclasses.replace(config, max_seeds=64), tmp_path)
    (task,) = more.summary.tasks
    assert task.looks[:3] == (16, 18, 22) and task.unsettled() == []
    assert min(seed for cell in trained for seed in cell.seeds) == 18


def test_a_finished_run_with_fixed_seeds_goes_on_until_it_is_decided(trained, tmp_path):
    fixed = dataclasses.replace(CLEAR, tasks=("digits",), until_decided=False, seeds=8)
    trained_until(fixed, tmp_path)
    trained.clear()
    done = trained_until(dataclasses.replace(fixed, until_decided=True), tmp_path)
    assert done.summary.tasks[0].looks[:2] == (16, 20)
    assert min(seed for cell in trained for seed in cell.seeds) == 8
    # It was looked at, so a fixed number of seeds no longer applies.
    looks = looks_of(done)["digits"]
    again = trained_until(dataclasses.replace(fixed, seeds=50), tmp_path)
    assert looks_of(again) == {"digits": (*looks, 50)}
    assert again.summary.tasks[0].sequential


def test_killed_at_any_moment_the_looks_are_the_same(trained, tmp_path, monkeypatch):
    whole = trained_until(CLEAR, tmp_path / "whole")
    original, left = Results.set_meta, 0

    def dies(results, key, value):
        nonlocal left
        left -= key in ("config", "looks")
        if not left:
            raise Killed
        original(results, key, value)

    for moment in (1, 2, 3, 5):
        left = moment
        monkeypatch.setattr(Results, "set_meta", dies)
        with pytest.raises(Killed):
            trained_until(CLEAR, tmp_path / str(moment))
        monkeypatch.setattr(Results, "set_meta", original)
        again = trained_until(CLEAR, tmp_path / str(moment))
        assert looks_of(again) == looks_of(whole)
        assert [t.results for t in again.summary.tasks] == [
            t.results for t in whole.summary.tasks
        ]


def test_the_stored_configuration_repeats_the_rounds(trained, tmp_path):
    path, _ = run(CLEAR, tmp_path)
    stored = CompareConfig.from_json((path.parent / "config.json").read_text())
    assert stored.until_decided and stored.rounds[0] == 16
    again, _ = run(first_look(stored), tmp_path / "again")
    assert [t.looks for t in summarize_run(again.parent).tasks] == [
        t.looks for t in summarize_run(path.parent).tasks
    ]


def test_a_script_is_extended_round_by_round(trained, tmp_path, monkeypatch):
    script = tmp_path / "train.py"
    script.write_text("")
    config = dataclasses.replace(CLEAR, tasks=(f"script:python {script} {{seed}}",))
    done = run_comparison(config, RunOptions(out=tmp_path, executor="inline"))
    (task,) = done.summary.tasks
    assert task.unsettled() == [] and task.looks[0] == 16 < task.looks[-1]


def test_the_terminal_tells_every_look(trained, tmp_path):
    _, text = run(dataclasses.replace(CLEAR, max_seeds=20), tmp_path)
    assert "Seeds are added in rounds of 4 until every verdict is settled" in text
    assert text.count("noisy-digits after 16 seeds: all settled.") == 1
    assert "digits after 16 seeds: undecided: ema, switch-ema against ema." in text
    assert "2 looks, after 16 and 20 seeds" in text
    assert "seeds would decide" in text
    _, text = run(dataclasses.replace(CLEAR, max_seeds=20), tmp_path)
    assert "The run has 20 seeds so far." in text
    row = next(line for line in text.splitlines() if "noisy-digits" in line)
    assert " 16 " in row  # not those of the other task


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"max_seeds": 12}, "max_seeds must be at least 16"),
        ({"round": 0}, "round must be at least 1"),
        ({"tune": 2}, "until_decided cannot be combined with tune or sweep"),
        ({"sweep": "lr=1,2"}, "until_decided cannot be combined with tune or sweep"),
    ],
)
def test_impossible_settings_are_refused_before_training(settings, words, tmp_path):
    with pytest.raises(UsageError, match=words):
        trained_until(dataclasses.replace(CLEAR, **settings), tmp_path)


@pytest.mark.parametrize("looks", ["[1]", '{"digits": []}', '{"digits": ["a"]}', "1"])
def test_a_damaged_list_of_looks_is_refused(looks):
    with pytest.raises(UsageError, match="the run's list of looks is damaged"):
        load_looks({"looks": looks})
    assert load_looks({"looks": json.dumps({"digits": [16, 20]})}) == {
        "digits": (16, 20)
    }


def test_stacked_seeds_are_trained_in_rounds(tmp_path):
    config = CompareConfig(
        tasks=("noisy-digits:size=80",),
        methods=("plain", "ema"),
        epochs=1,
        stack="auto",
        until_decided=True,
        max_seeds=16,
        round=8,
        smallest_effect=1e-3,
    )
    done = run_comparison(config, RunOptions(out=tmp_path, executor="inline"))
    (task,) = done.summary.tasks
    assert done.error is None and task.looks == (16,)
    more = dataclasses.replace(config, max_seeds=24)
    done = run_comparison(more, RunOptions(out=tmp_path, executor="inline"))
    (task,) = done.summary.tasks
    assert task.looks in ((16,), (16, 24))
    assert all(r.last.n == task.looks[-1] for r in task.results["accuracy"])


def test_seeds_can_be_added_for_switch_ema_against_ema_alone(trained, tmp_path):
    config = dataclasses.replace(CLEAR, tasks=("digits",), settle="switch-ema")
    task = trained_until(config, tmp_path).summary.tasks[0]
    # One comparison is decided by no fewer than 12 seeds, and the others do not matter.
    assert task.looks[0] == 12 and task.unsettled("switch-ema") == []
    every = dataclasses.replace(config, settle="every")
    longer = trained_until(every, tmp_path / "every").summary.tasks[0]
    assert longer.looks[-1] >= task.looks[-1]


def test_settle_must_be_known():
    with pytest.raises(UsageError, match="settle must be every or switch-ema, got 'x'"):
        dataclasses.replace(CLEAR, settle="x")


def test_what_settles_must_be_compared():
    message = "settle switch-ema needs switch-ema among the methods, got plain, ema"
    with pytest.raises(UsageError, match=message):
        dataclasses.replace(CLEAR, methods=("plain", "ema"), settle="switch-ema")
