"""Rows of the paper's tables build, and take steps on generated data."""

import os
import signal
from dataclasses import replace
from multiprocessing import Pipe
from pathlib import Path

import pytest
import torch

from switch_ema.bench.errors import UsageError
from switch_ema.bench.execute.options import RunOptions
from switch_ema.bench.loading import create_task
from switch_ema.bench.spec import parse_spec
from switch_ema.bench.train.context import RunContext
from switch_ema.bench.train.rehearsal import (
    RehearsalLimits,
    RehearsedTraining,
    rehearse_cell,
)
from switch_ema.paper.reproduce import rehearse
from switch_ema.paper.reproduce.plan import plan_rows, select_tables
from switch_ema.paper.reproduce.presets import RowSettings
from switch_ema.paper.reproduce.rehearse import (
    check_data,
    reduced_cell,
    rehearse_row,
)
from switch_ema.paper.reproduce.rehearse_options import RehearseOptions
from switch_ema.zoo.data.sample_files import SAMPLES, write_sample
from switch_ema.zoo.tasks.generation.frechet import write_untrained_inception
from switch_ema.zoo.tasks.language import bert_lm, bert_text

TABLES = [f"table-{number}" for number in range(2, 13)]
LARGE = {"wikitext103": {"vocabulary": 1000}}
"""Options to avoid a network of 290 million weights, most of them of its words."""
FEW = RehearsalLimits(steps=1, evaluated=2)


def plans_of(*patterns, tables=TABLES):
    settings = RowSettings(scale="paper", seeds=1)
    return plan_rows(select_tables(tables), patterns, settings, Path("none"))


def reduced(plan, side=None):
    """The cell of a row with 2 examples per step, from scratch, with few words."""
    task, options = plan.config.tasks[0], {}
    if "weights=" in task:
        options["weights"] = "none"
    for name, fewer in LARGE.items():
        options |= fewer if f"dataset={name}" in task else {}
    return reduced_cell(plan, 2, side, options)


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    """All data of the paper, a few examples each."""
    folder = tmp_path_factory.mktemp("data")
    for name in SAMPLES:
        write_sample(name, folder, count=10)
    write_untrained_inception(folder / "weights-inception-2015-12-05-6726825d.pth")
    return folder


@pytest.fixture
def data(samples, monkeypatch):
    monkeypatch.setenv("SWITCH_EMA_DATA", str(samples))
    monkeypatch.setenv("XDG_CACHE_HOME", str(samples / "cache"))


def test_every_row_builds_at_full_size(data):
    """Networks are made without memory for their weights."""
    plans = plans_of()
    assert len(plans) == 68
    for plan in plans:
        cell = reduced(plan)
        assert cell.recipe.accumulate == 1
        task = create_task(cell.task, cell.networks, split="test")
        with torch.device("meta"):
            model = task.model()
        task.optimizer(model)
        assert sum(weight.numel() for weight in model.parameters()) > 5e6


@pytest.mark.parametrize(
    "plan",
    [pytest.param(p, id=f"{p.table.name} {p.row.name}") for p in plans_of()],
)
def test_every_row_takes_a_step(plan, data, tmp_path, monkeypatch):
    """At full size, on smaller images; with its own procedure, loss and optimizer."""
    for task in (bert_lm, bert_text):  # shorter texts, likewise
        fewer = replace(task.SCALES["paper"], length=32, batch=2)
        monkeypatch.setitem(task.SCALES, "paper", fewer)
    context = RunContext(tmp_path, device="cpu", readers=0)
    training = RehearsedTraining(reduced(plan, 32), context, FEW)
    before = training._digest(training.model)
    training._train_epoch()  # raises if the loss is not finite
    assert training._digest(training.model) != before
    assert training.step_log.for_trackers


@pytest.mark.parametrize(
    ("row", "side"),
    [
        ("resnet18", None),
        ("simclr-cifar100", 32),
        ("rcf-mnist-resnet18", None),
        ("lstm-sgd", None),
    ],
)
def test_rows_train_evaluate_and_resume(data, tmp_path, row, side):
    (plan,) = plans_of(row)
    cell = reduced_cell(plan, 2, side)
    found = rehearse_cell(cell, RunContext(tmp_path, device="cpu"), FEW)
    assert found.flops > 0 and found.activations_mb > 0
    assert found.evaluated is not None and found.values


def test_a_row_without_data_is_rehearsed_on_generated_files(tmp_path, monkeypatch):
    """In a process of its own, whose memory is not that of the tests."""
    monkeypatch.delenv("SWITCH_EMA_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (plan,) = plans_of("vgg13-bn")
    assert check_data(plan).missing == ("cifar100",)
    options = RehearseOptions(rehearse=True, max_steps=1, max_eval=2)
    held = torch.ones(100_000_000)  # 400 MB here, not there
    found = rehearse_row(plan, options, RunOptions(out=tmp_path, device="cpu"))
    assert found.error == "" and found.measured is not None
    assert (found.data, found.missing, found.batch) == ("generated", ("cifar100",), 2)
    assert found.measured.network.endswith("9,462,180 parameters")
    assert 300 < found.measured.process_mb < 3000
    assert held[0] == 1


def test_data_that_is_there_is_used(data, samples):
    (plan,) = plans_of("vgg13-bn")
    check = check_data(plan)
    assert check.found == {"cifar100": str(samples / "cifar-100-python")}
    assert check.missing == check.weights == ()
    (plan,) = plans_of("celeba")
    assert check_data(plan).weights == ()


def test_missing_weights_are_named(samples, tmp_path, monkeypatch):
    write_sample("cifar10", tmp_path, count=10)
    monkeypatch.setenv("SWITCH_EMA_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "cache"))
    (plan,) = plans_of("cifar10")
    check = check_data(plan)
    assert (check.missing, check.weights) == ((), ("weights-inception",))
    own = rehearse._in_place_of_weights(check, tmp_path)
    assert create_task(reduced_cell(plan, 2, None, own).task, (0,)).inception
    (plan,) = plans_of("mask-rcnn-2x")
    check = check_data(plan)
    assert (check.missing, check.weights) == (("coco",), ("weights-resnet50",))
    assert rehearse._in_place_of_weights(check, tmp_path) == {"weights": "none"}


def _die(connection, parent, work):
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_process_fails_its_row_alone(data, tmp_path, monkeypatch):
    (plan,) = plans_of("resnet18")
    monkeypatch.setattr(rehearse, "_rehearse", _die)
    options = RehearseOptions(rehearse=True)
    found = rehearse_row(plan, options, RunOptions(out=tmp_path, device="cpu"))
    assert found.measured is None
    assert found.error == "its process died by signal 9 (9: often out of memory)"


@pytest.mark.parametrize(
    ("error", "message", "is_traced"),
    [
        (RuntimeError("two\nlines"), "RuntimeError: two lines", True),
        (UsageError("batch must be even."), "batch must be even.", False),
    ],
)
def test_an_exception_becomes_one_sentence(
    tmp_path, monkeypatch, error, message, is_traced
):
    def fail(*arguments):
        raise error

    (plan,) = plans_of("resnet18")
    monkeypatch.setattr(rehearse, "rehearse_cell", fail)
    ours, theirs = Pipe()
    cell = reduced_cell(plan, 2, None)
    work = rehearse._Work(cell, RunContext(tmp_path), FEW, None)
    rehearse._rehearse_here(theirs, work)
    kept = ours.recv().keep(tmp_path, plan)
    assert kept.startswith(message) and "\n" not in kept
    assert ("traceback: " in kept) == is_traced


def test_rows_keep_their_rules(data, tmp_path):
    (plan,) = plans_of("deit-s", tables=["table-3"])
    cell = reduced_cell(plan, 3, None)
    with pytest.raises(UsageError, match="batch must be a divisor of the procedure's"):
        rehearse_cell(cell, RunContext(tmp_path, device="cpu"), FEW)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_steps": 0}, "max_steps must be at least 1, got 0."),
        ({"max_eval": 1}, "max_eval must be at least 2, got 1."),
        ({"rehearse_batch": 1}, "rehearse_batch must be at least 2, got 1."),
        ({"rehearse_side": 4}, "rehearse_side must be at least 8, got 4."),
    ],
)
def test_limits_are_checked(options, message):
    with pytest.raises(UsageError, match=message):
        RehearseOptions(**options)


def test_the_cell_with_most_methods_is_rehearsed():
    (plan,) = plans_of("resnet18", tables=["table-3"])
    cell = reduced_cell(plan, None, None)
    assert cell.methods == ("plain", "ema:decay=0.99")
    assert "batch" not in parse_spec(cell.task).options
    (large,) = plans_of("bert-wikitext")
    own = reduced_cell(large, None, None).recipe
    assert own.accumulate == 16
    assert reduced_cell(large, 2, None).recipe == replace(own, accumulate=1)
