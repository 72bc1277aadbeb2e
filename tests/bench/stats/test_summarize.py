"""What the summary says beside the numbers."""

import time
from contextlib import closing

import pytest

from switch_ema.bench.plan.cells import make_plan
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.plan.task_snapshot import FACTS, dump_facts
from switch_ema.bench.results.store import Results
from switch_ema.bench.stats.summarize import summarize
from switch_ema.bench.train import loop
from switch_ema.bench.train.context import RunContext
from switch_ema.bench.train.loop import train_cell
from tests.bench.conftest import TINY_TASK


@pytest.fixture
def summary_of(tmp_path):
    def summary_of(config, train):
        with closing(Results(tmp_path / "results.sqlite", create=True)) as results:
            results.set_meta(FACTS, dump_facts(config.tasks))
            for cell in make_plan(config):
                results.add(cell, train(cell, RunContext(tmp_path, "cpu")))
            return summarize(config, results, "run").tasks[0]

    return summary_of


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "the task's own optimizer"),
        ({"optimizer": "sgd:lr=0.1"}, "sgd:lr=0.1"),
        (
            {"layer_decay": 0.5},
            "adamw:lr=0.001 (not the task's own optimizer) with layer decay 0.5",
        ),
        (
            {"layer_decay": 0.5, "optimizer": "sgd:lr=0.1"},
            "sgd:lr=0.1 with layer decay 0.5",
        ),
    ],
)
def test_the_optimizer_that_trained_is_named(tiny, tmp_path, summary_of, given, told):
    config = CompareConfig(tasks=(tiny,), methods=("plain",), seeds=1, **given)
    [own] = make_plan(CompareConfig(tasks=(tiny,), methods=("plain",), seeds=1))
    # Its numbers do not matter here, and its layers have no order.
    result = train_cell(own, RunContext(tmp_path, "cpu"))
    assert summary_of(config, lambda cell, place: result).optimizer == told


MOODY = (
    TINY_TASK
    + """

class Moody(Tiny):
    def evaluate(self, model):
        measured = super().evaluate(model)
        return {**measured, "error": float("nan")} if self.seed == 1 else measured
"""
)


def test_a_seed_that_evaluate_gave_no_number_for_is_a_problem(tmp_path, summary_of):
    path = tmp_path / "moody.py"
    path.write_text(MOODY)
    task = f"{path}:Moody"
    config = CompareConfig(tasks=(task,), methods=("plain", "ema"), seeds=2)
    found = summary_of(config, train_cell)
    assert [result.last.n for result in found.results["error"]] == [1, 1]
    assert found.problems == [
        f"{task}, plain + ema, seed 1: done, evaluate returned no finite number "
        "for error of plain with seed 1, error of ema with seed 1."
    ]


def test_processor_time_is_summed_over_seeds_and_resumed_epochs(
    config, tmp_path, summary_of, monkeypatch
):
    clock = iter(range(10_000))
    monkeypatch.setattr(time, "process_time", lambda: float(next(clock)))
    cell = make_plan(config)[0]
    stops = RunContext(tmp_path, "cpu")
    original = loop.Training._finish_epoch

    def once(training, progress):
        original(training, progress)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(loop.Training, "_finish_epoch", once)
        train_cell(cell, stops)
    task = summary_of(config, train_cell)
    # Three epochs of training, three evaluations, and the training loss of the final
    # weights, each a tick of the clock.
    assert {cost.processor_seconds for cost in task.costs} == {7.0}
