"""How long the rest of a row takes: from one epoch, or from what is stored."""

from contextlib import closing
from dataclasses import replace

import pytest

from switch_ema.bench.errors import UsageError
from switch_ema.bench.execute.options import RunOptions
from switch_ema.bench.plan.cells import make_plan
from switch_ema.paper.reproduce import estimate
from switch_ema.paper.reproduce.estimate import gpu_hours, measure_row_time

from .test_run import OPTIONS, plan, quiet, tiny_rows, train_rows

__all__ = ["tiny_rows"]  # a fixture


def test_time_is_estimated_from_one_epoch(tiny_rows, tmp_path, monkeypatch):
    """Setup once, training each epoch, evaluation each epoch and method."""
    [one] = plan(tmp_path, "swin-t", epochs=10)
    epoch = estimate._Epoch(setup=1.0, train=2.0, evaluate=0.5)
    measured = []

    def measure(cell, device):
        measured.append(cell)
        return epoch

    monkeypatch.setattr(estimate, "_measure_epoch", measure)
    # Two seeds of plain with EMA, and of Switch EMA.
    trainings = 2 * 10 * (2 + 2 * 0.5) + 2 * 10 * (2 + 0.5)
    assert measure_row_time(one, OPTIONS) == pytest.approx(1 + trainings)
    two_jobs = RunOptions(jobs=2, device="cpu")
    assert measure_row_time(one, two_jobs) == pytest.approx(1 + trainings / 2)
    assert measured == [make_plan(one.config)[0]] * 2
    # Evaluated after epochs 4, 8 and 10 only.
    rarely = replace(one, config=replace(one.config, evaluate_every=4))
    trainings = 2 * (10 * 2 + 3 * 2 * 0.5) + 2 * (10 * 2 + 3 * 0.5)
    assert measure_row_time(rarely, OPTIONS) == pytest.approx(1 + trainings)


def test_one_epoch_is_measured_and_thrown_away(tiny_rows, tmp_path):
    [one] = plan(tmp_path, "swin-t")
    epoch = estimate._measure_epoch(make_plan(one.config)[0], "cpu")
    assert epoch.setup > 0 and epoch.train > 0 and epoch.evaluate > 0
    assert not one.folder.exists()


def test_time_of_the_rest_is_that_of_what_is_stored(tiny_rows, tmp_path, monkeypatch):
    [one] = plan(tmp_path, "swin-t")
    add, stored = estimate.Results.add, []

    def add_two(self, cell, result):
        if len(stored) == 2:
            raise KeyboardInterrupt
        result.train_seconds, result.evaluate_seconds = 30.0 + len(stored), 6.0
        stored.append(cell)
        add(self, cell, result)

    monkeypatch.setattr(estimate.Results, "add", add_two)
    with pytest.raises(KeyboardInterrupt):
        train_rows([one], OPTIONS, quiet())
    assert measure_row_time(one, OPTIONS) == pytest.approx(36 + 37)


def test_gpu_hours_are_those_of_trainings_that_finished_on_gpus(
    tiny_rows, tmp_path, monkeypatch
):
    [one] = plan(tmp_path, "swin-t")
    assert gpu_hours(one) is None  # nothing is stored
    add, stored = estimate.Results.add, []

    def add_two(self, cell, result):
        if len(stored) == 2:
            raise KeyboardInterrupt
        stored.append(cell)
        result.train_seconds, result.evaluate_seconds = 1800.0, 0.0
        add(self, cell, result)

    monkeypatch.setattr(estimate.Results, "add", add_two)
    with pytest.raises(KeyboardInterrupt):
        train_rows([one], OPTIONS, quiet())
    assert gpu_hours(one) is None  # it was on the CPU
    [task] = one.config.tasks
    with closing(estimate.Results(one.folder / "results.sqlite")) as results:
        results.set_meta(f"trained of {task}", '{"Device": "NVIDIA A100"}')
        assert gpu_hours(one) == pytest.approx(2 * 0.5)
        results.set_meta("workers per training", "8")
    assert gpu_hours(one) == pytest.approx(8 * 2 * 0.5)


def test_a_failure_in_measuring_is_one_sentence(tiny_rows, tmp_path):
    [one] = plan(tmp_path, "deit-s")
    with pytest.raises(UsageError, match="lost key"):
        measure_row_time(one, OPTIONS)
