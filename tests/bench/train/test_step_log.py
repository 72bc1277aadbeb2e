"""The log of steps: what is in it, that it resumes, and what trackers get."""

import dataclasses
import json
import math

import pytest

from switch_ema.bench.plan.cells import make_plan
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.train import loop, step_log
from switch_ema.bench.train.context import RunContext
from switch_ema.bench.train.loop import Training, train_cell
from switch_ema.bench.train.step_log import steps_path


@pytest.fixture
def cell(tiny):
    methods = ("plain", "ema:decay=0.9", "lawa")
    config = CompareConfig(
        tasks=(tiny,), methods=methods, seeds=1, schedule="cosine", accumulate=2
    )
    return make_plan(config)[0]


def lines_of(folder, cell):
    return [json.loads(line) for line in steps_path(folder, cell).open()]


def test_a_line_has_the_mean_loss_of_its_steps(cell, tmp_path, monkeypatch):
    monkeypatch.setattr(step_log, "_EVERY", 1)
    losses, take_step = [], loop.take_step

    def note(*arguments):
        losses.append(take_step(*arguments))
        return losses[-1]

    monkeypatch.setattr(loop, "take_step", note)
    train_cell(cell, RunContext(tmp_path, "cpu"))
    lines = lines_of(tmp_path, cell)
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert [line["epoch"] for line in lines] == [1, 1, 2, 2, 3, 3]
    for line, loss in zip(lines, losses, strict=True):
        assert line["loss"] == pytest.approx(loss.item(), rel=1e-5)
        assert line["examples_per_second"] > 0 and line["memory_mb"] > 0
        assert set(line["decays"]) == {"ema:decay=0.9", "lawa"}
    rates = [line["learning_rate"] for line in lines]
    assert rates[0] == 0.05 and rates == sorted(rates, reverse=True)


class Sum:
    """A sum of losses on a device, which counts how often it is read."""

    reads = 0

    def item(self):
        self.reads += 1
        return 2.0 * self.reads


def test_the_device_is_read_once_per_interval(cell, tmp_path):
    """Every read of a GPU waits for it."""
    training = Training(cell, RunContext(tmp_path, "cpu"))
    log, total, due = training.step_log, Sum(), []
    log.begin_epoch(0.0, 0)
    settings = {"optimizer": training.optimizer, "averagers": training.averagers}
    for step in range(1, 121):
        if log.add(8):
            due.append(step)
            log.write(total, epoch=1, step=step, **settings)
    for _ in range(2):  # nothing is left for the second
        log.write(total, epoch=1, step=120, **settings)
    assert due == [50, 100] and total.reads == 3
    means = [line["loss"] for line in lines_of(tmp_path, cell)]
    assert means == [2 / 50, 2 / 50, 2 / 20]


def test_a_resumed_training_has_each_step_once(cell, tmp_path, monkeypatch):
    monkeypatch.setattr(step_log, "_EVERY", 1)
    whole = train_cell(cell, RunContext(tmp_path / "whole", "cpu"))
    taken, take_step = [], loop.take_step

    def dies(*arguments):
        taken.append(1)
        if len(taken) == 4:
            raise KeyboardInterrupt
        return take_step(*arguments)

    monkeypatch.setattr(loop, "take_step", dies)
    with pytest.raises(KeyboardInterrupt):
        train_cell(cell, RunContext(tmp_path / "parts", "cpu"))
    with steps_path(tmp_path / "parts", cell).open("a") as file:
        file.write('{"epoch": 2, "st')  # cut off by a kill
    monkeypatch.setattr(loop, "take_step", take_step)
    assert (
        train_cell(cell, RunContext(tmp_path / "parts", "cpu")).values == whole.values
    )
    found, expected = (lines_of(tmp_path / name, cell) for name in ("parts", "whole"))
    assert [line["step"] for line in found] == [1, 2, 3, 4, 5, 6]
    assert [line["loss"] for line in found] == [line["loss"] for line in expected]


def test_trackers_get_the_training_beside_the_values(cell, tmp_path, monkeypatch):
    training = Training(cell, RunContext(tmp_path, "cpu"))
    training.context = dataclasses.replace(training.context, trackers=("any",))
    logged = []
    monkeypatch.setattr(training, "_start_trackers", lambda: None)
    monkeypatch.setattr(
        training.accelerator, "log", lambda values, step: logged.append((step, values))
    )
    training.run()
    assert [step for step, _ in logged] == [1, 2, 3]
    for _, values in logged:
        assert {
            *("training/loss", "training/learning rate", "training/memory (MB)"),
            *("training/examples per second", "training/decay of ema:decay=0.9"),
            "plain/error",
        } <= values.keys()
        assert all(math.isfinite(value) for value in values.values())
