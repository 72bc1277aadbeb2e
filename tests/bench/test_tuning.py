"""Tuning: which candidate is chosen, and what is refused before it begins."""

import json
import math
from contextlib import closing
from dataclasses import replace

import pytest

from switch_ema.bench.errors import UsageError
from switch_ema.bench.plan.candidates import candidates_of, places_of
from switch_ema.bench.plan.cells import make_plan
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.plan.sweep_points import plan_points
from switch_ema.bench.results.store import Results
from switch_ema.bench.train.result import CellResult
from switch_ema.bench.tuning import (
    SEEDS,
    TRIALS,
    check_tuning,
    plan_trials,
    tune,
    tuned_points,
)


def chosen(tmp_path, tiny, scores, **more):
    """Tune one task with made-up errors instead of trainings."""
    return chosen_by_task(tmp_path, tiny, lambda _: scores, **more)[tiny]


def chosen_by_task(tmp_path, tiny, scores_of, **more):
    """Tune with made-up errors of each task, lower being better."""
    scores = scores_of(tiny)
    config = CompareConfig(
        tasks=(tiny,), methods=("plain", "ema"), tune=len(scores), seeds=2
    )
    config = replace(config, **more)
    results = Results(tmp_path / "results.sqlite", create=True)

    def train(cells):
        for cell in cells:
            seeds = len(cell.seeds)
            values = {
                method: {
                    "error": [[scores_of(cell.task).get(method, 1.0)]] * seeds,
                    "slope": [[0.0]] * seeds,
                }
                for method in cell.methods
            }
            results.add(cell, CellResult("done", "", values))

    return tune(config, make_plan(config), results, train)


def check(config):
    check_tuning(config, make_plan(config))


EMA = [f"ema:decay={decay}" for decay in (0.99, 0.999, 0.9, 0.9999)]


def test_the_best_mean_is_chosen(tmp_path, tiny):
    scores = dict(zip(EMA, (0.5, 0.3, 0.4, 0.6), strict=True))
    assert chosen(tmp_path, tiny, scores) == ("plain", EMA[1])
    with closing(Results(tmp_path / "results.sqlite")) as results:
        tried = json.loads(results.meta()[TRIALS])[tiny]
    assert tried[EMA[2]] == [0.4] * SEEDS and tried.keys() == {"plain", *EMA}


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e308])
@pytest.mark.parametrize("position", range(4))
def test_a_candidate_without_a_score_is_never_chosen(tmp_path, tiny, bad, position):
    values = [0.5, 0.5, 0.5, 0.5]
    values[position] = bad
    scores = dict(zip(EMA, values, strict=True))
    expected = EMA[1] if position == 0 else EMA[0]
    assert chosen(tmp_path, tiny, scores) == ("plain", expected)


def test_equal_scores_keep_the_order_of_the_candidates(tmp_path, tiny):
    scores = dict.fromkeys(EMA, 0.5)
    assert chosen(tmp_path, tiny, scores) == ("plain", EMA[0])  # not 0.9, the lowest


def test_a_method_that_an_optimizer_brings_along_is_not_tuned(tmp_path, tiny):
    found = chosen(tmp_path, tiny, dict.fromkeys(EMA, 0.5), optimizer="sasam")
    assert found == ("plain", EMA[0])


@pytest.mark.parametrize(
    ("tuned", "labels"),
    [
        ("lr", ("", "@lr*0.5", "@lr*2", "@lr*0.25", "@lr*4")),
        ("lr=0.1,0.2", ("@lr=0.1", "@lr=0.2")),
    ],
)
def test_every_method_has_the_same_learning_rates(tmp_path, tiny, tuned, labels):
    scores = {f"{name}{label}": 0.5 for name in ("plain", "ema") for label in labels}
    scores |= {f"plain{labels[1]}": 0.3, f"ema{labels[-1]}": 0.2}
    found = chosen(tmp_path, tiny, scores, tune=tuned)
    assert found == (f"plain{labels[1]}", f"ema{labels[-1]}")


def test_each_task_has_its_own_choice(tmp_path, tiny):
    other = f"{tiny}:noise=2"

    def scores_of(task):
        best = "ema@lr*4" if task == tiny else "plain@lr*0.25"
        return {best: 0.1, **dict.fromkeys(("plain", "ema"), 0.5)}

    found = chosen_by_task(tmp_path, tiny, scores_of, tasks=(tiny, other), tune="lr")
    assert found == {tiny: ("plain", "ema@lr*4"), other: ("plain@lr*0.25", "ema")}
    config = CompareConfig(tasks=(tiny, other), methods=("plain", "ema"), seeds=1)
    cells = plan_points(config, tuned_points(config, found))
    assert {(cell.task, cell.methods) for cell in cells} == {
        (tiny, ("plain", "ema")),
        (tiny, ("ema@lr*4",)),
        (other, ("plain", "ema")),
        (other, ("plain@lr*0.25",)),
    }


def test_the_start_of_swa_fits_each_task(tiny):
    tasks = (tiny, "noisy-digits")
    config = CompareConfig(tasks=tasks, methods=("plain", "swa"), tune=1, seeds=1)
    cells = plan_trials(config, make_plan(config))
    assert {cell.task: cell.methods[1] for cell in cells} == {
        cell.task: f"swa:start={int(0.75 * cell.recipe.epochs)}" for cell in cells
    }
    assert len({cell.recipe.epochs for cell in cells}) == 2


def test_trials_are_trained_once_for_all_that_read(tiny):
    config = CompareConfig(tasks=(tiny,), methods=("plain", "ema"), tune="lr", seeds=2)
    cells = plan_trials(config, make_plan(config))
    assert len(cells) == 5 * SEEDS and {cell.split for cell in cells} == {"validation"}
    assert all(len(cell.methods) == 2 for cell in cells)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tune": "speed=1,2"}, "have an option 'speed'"),
        (
            {"tune": "lr", "methods": ("ema", "ema@lr*2")},
            r"would try ema@lr\*2 for both",
        ),
        ({"tune": 9}, "tune must be at most 4, got 9"),
        (
            {"methods": ("plain", "ema", "ema:decay=0.99")},
            "would try ema:decay=0.99 for both ema and ema:decay=0.99; leave one",
        ),
    ],
)
def test_what_cannot_be_tuned_is_refused_beforehand(tiny, options, message):
    given = {"tasks": (tiny,), "methods": ("plain", "ema"), "tune": 1, **options}
    with pytest.raises(UsageError, match=message):
        check(CompareConfig(**given))


def test_a_task_without_a_split_is_refused_beforehand(tiny):
    path = tiny.partition(":")[0]
    with open(path) as file:
        text = file.read()
    with open(path, "w") as file:
        file.write(text.replace(', split="test"', ""))
    config = CompareConfig(tasks=(tiny,), methods=("plain", "ema"), tune=1)
    with pytest.raises(UsageError, match="cannot be tuned: its constructor has no"):
        check(config)


LR, EPOCHS, MAIN = "learning rate", "number of epochs", "value of its main option"


@pytest.mark.parametrize(
    ("tuned", "chosen", "places"),
    [
        (
            "lr",
            ("plain", "ema@lr*0.25"),
            {LR: {"plain": "as given", "ema": "smallest"}},
        ),
        ("lr", ("plain@lr*4", "ema@lr*2"), {LR: {"plain": "largest"}}),
        ("lr=0.1,0.2,0.4", ("plain@lr=0.1", "ema@lr=0.2"), {LR: {"plain": "smallest"}}),
        ("decay=0.9,0.99", ("plain", "ema:decay=0.99"), {"decay": {"ema": "largest"}}),
        (4, ("plain", "ema:decay=0.9"), {MAIN: {"ema": "smallest"}}),
        (4, ("plain", "ema:decay=0.999"), {}),
        (
            "lr,epochs",
            ("plain@epochs*0.25", "ema@epochs*0.5,lr*4"),
            {
                LR: {"plain": "as given", "ema": "largest"},
                EPOCHS: {"plain": "smallest"},
            },
        ),
    ],
)
def test_the_ends_of_what_was_tried_are_known(tuned, chosen, places):
    config = CompareConfig(tasks=("digits",), methods=("plain", "ema"), tune=tuned)
    assert places_of(config, 30, chosen) == places


def test_two_options_are_tuned_together(tmp_path, tiny):
    scores = {"plain@epochs*0.5": 0.3, "ema@epochs*0.25,lr*2": 0.2, "plain": 0.4}
    found = chosen(tmp_path, tiny, scores, tune="lr,epochs")
    assert found == ("plain@epochs*0.5", "ema@epochs*0.25,lr*2")
    scores = {"ema@epochs=2:decay=0.9": 0.1}
    found = chosen(tmp_path / "given", tiny, scores, tune="decay=0.9,0.99,epochs=1,2")
    assert found == ("plain@epochs=1", "ema@epochs=2:decay=0.9")


def test_a_method_keeps_the_options_that_it_sets(tiny):
    methods = ("plain", "ema@epochs=2")
    config = CompareConfig(tasks=(tiny,), methods=methods, tune="lr,epochs", seeds=1)
    plain, ema = candidates_of(config, 4)
    assert len(plain) == 15 and len(ema) == 5
    assert "ema@lr*4,epochs=2" in ema
