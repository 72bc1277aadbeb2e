"""Held-out values choose the epoch, test values are reported."""

import math
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import cross_entropy

from switch_ema import Best
from switch_ema.bench.errors import UsageError
from switch_ema.bench.plan.cells import HELD_OUT, Cell, make_plan
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.recipe import Metric, Recipe
from switch_ema.bench.train import task_checks
from switch_ema.bench.train.context import RunContext
from switch_ema.bench.train.loop import Training
from switch_ema.bench.train.selection import Selection
from switch_ema.contrib import Adaptive

ACCURACY = Metric(name="accuracy", higher_is_better=True, unit="%")
TASK = "noisy-digits:noise=0.4,size=500,batch=10"
ADAPTIVE = "switch-ema:decay=0.9,switch_every=adaptive"
METHODS = ("plain", "ema:decay=0.9", "ema+best:decay=0.9", "plain+best")


def cell(seeds=(1,), epochs=12):
    recipe = Recipe(epochs=epochs)
    return Cell(TASK, None, recipe, METHODS, seeds, HELD_OUT)


def test_each_seed_has_an_epoch_of_its_own():
    selection = Selection(ACCURACY, examples=100)  # one error is 5 points at 50%
    held_out = ([50.0, 50.0, math.nan], [60.0, 40.0, 50.0], [52.0, 47.0, math.nan])
    for number, values in enumerate(held_out):
        tested = {"accuracy": [number + seed / 10 for seed in range(3)]}
        found = selection.add(values, tested)
    # 52 is worse than 60 by more than an error; 47 is not worse than 50 by one.
    assert found == {"accuracy": [1.0, 2.1, 1.2]}


def test_it_reports_what_the_best_average_itself_scores_on_the_test_data(tmp_path):
    """The library's Best, told the same held-out values, beside the loop."""
    training = Training(cell(), RunContext(tmp_path, "cpu"))
    ema = training.averagers["ema+best:decay=0.9"]
    best = Best(ema, higher_is_better=True, n=100)
    for _ in range(12):
        training._train_epoch()
        with ema.averaged(), torch.no_grad():
            training.model.eval()
            share = task_checks.measure(training.task, training.model, 1)["accuracy"][0]
        best.update(share / 100)
        training._evaluate()
        training.epoch += 1
    assert best.is_better_than_last
    with best.averaged(), torch.no_grad():
        training.model.eval()
        expected = task_checks.measure(training.tested, training.model, 1)
    found = training.result.values["ema+best:decay=0.9"]
    assert {metric: epochs[-1] for metric, epochs in found.items()} == expected
    last = training.result.values["ema:decay=0.9"]["accuracy"][-1]
    assert last != expected["accuracy"]


def test_a_fifth_is_held_out_and_nothing_of_the_test_data_is_trained_on(tmp_path):
    training = Training(cell(), RunContext(tmp_path, "cpu"))
    assert (len(training.task.x), len(training.task.x_eval)) == (400, 100)
    assert training.selections["plain+best"].examples == 100
    test = {tuple(row) for row in training.tested.x_eval.tolist()}
    assert len(training.tested.x_eval) == 1797 - 500
    held_out = {tuple(row) for row in training.task.x_eval.tolist()}
    train = {tuple(row) for row in training.task.x.tolist()}
    assert not held_out & train and not test & (train | held_out)


def test_stopped_and_resumed_it_reports_the_same(tmp_path):
    class Stop(Exception):
        pass

    def stop(epoch, latest):
        if epoch == 5:
            raise Stop

    seeds = (0, 1, 4, 5)
    whole = Training(cell(seeds), RunContext(tmp_path / "whole", "cpu")).run()
    with pytest.raises(Stop):
        Training(cell(seeds), RunContext(tmp_path / "stopped", "cpu")).run(stop)
    resumed = Training(cell(seeds), RunContext(tmp_path / "stopped", "cpu")).run()
    assert resumed.values == whole.values
    chosen, last = (
        whole.values[label]["accuracy"][-1]
        for label in ("ema+best:decay=0.9", "ema:decay=0.9")
    )
    assert any(a != b for a, b in zip(chosen, last, strict=True))


def test_all_methods_of_the_comparison_hold_out():
    config = CompareConfig(tasks=("digits",), methods=("plain", "switch-ema+best"))
    assert {c.split for c in make_plan(config)} == {HELD_OUT}
    config = CompareConfig(tasks=("digits",), methods=("plain", "switch-ema"))
    assert {c.split for c in make_plan(config)} == {"test"}


CELLS = pytest.param("cell-count", marks=pytest.mark.zoo)


@pytest.mark.parametrize("task", [CELLS, "lm"])
def test_tasks_without_a_share_of_held_out_examples_are_refused(task):
    config = CompareConfig(tasks=(task,), methods=("plain", "ema+best"))
    with pytest.raises(UsageError, match="ema\\+best needs"):
        make_plan(config)


def test_an_adaptive_method_decides_by_what_is_held_out(tmp_path):
    """It is the library's rule, with the held-out data as its probe."""
    own = replace(cell(epochs=30), methods=(ADAPTIVE,))
    training = Training(own, RunContext(tmp_path, "cpu"))
    averager = training.averagers[ADAPTIVE]
    rule = averager._schedule
    assert isinstance(rule, Adaptive)
    task, model = training.task, training.model.eval()
    outputs = model(task.x_eval)
    nll, error = rule.probe(model)
    assert nll == pytest.approx(cross_entropy(outputs, task.y_eval).item())
    assert 100 * (1 - error) == pytest.approx(task.evaluate(model)["accuracy"])
    training.run()
    assert averager._adaptive._seen.is_switching  # the labels are noisy
    assert training.result.options[ADAPTIVE].count(
        "Adaptive(patience=4, tolerance=0.03)"
    )


def test_an_adaptive_method_trains_each_seed_by_itself():
    methods = ("plain", "ema", ADAPTIVE)
    config = CompareConfig(tasks=("digits",), methods=methods, seeds=8, stack="auto")
    found = [(c.methods, c.split, len(c.seeds)) for c in make_plan(config)]
    assert found[0] == (("plain", "ema"), HELD_OUT, 8)
    assert found[1:] == [((ADAPTIVE,), HELD_OUT, 1)] * 8
    config = replace(config, tasks=("moons",), methods=("plain", ADAPTIVE))
    with pytest.raises(UsageError, match="decides for each seed separately, but moons"):
        make_plan(config)
    config = replace(config, tasks=("script:python train.py {seed}",))
    with pytest.raises(UsageError, match="adaptive does not work with a script"):
        make_plan(config)
