"""A trial measures every method in the user's own loop, and else does nothing."""

import fcntl
import json
import os
import random

import pytest
import torch
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard

import switch_ema
from switch_ema.bench.train import trial as module
from switch_ema.bench.train.trial import TRIAL, _leave_without, processes_of
from tests.averaging.distributed.processes import run


def make():
    torch.manual_seed(3)
    model = nn.Linear(3, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def step(model, optimizer):
    optimizer.zero_grad()
    model(torch.randn(8, 3)).square().mean().backward()
    optimizer.step()


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """Say in the environment what a comparison would; return the log."""
    log = tmp_path / "values.jsonl"

    def ask(*methods):
        told = {"methods": methods, "log": str(log), "lock": str(tmp_path / "lock")}
        monkeypatch.setenv(TRIAL, json.dumps(told))
        monkeypatch.setattr(module, "_begun_in", None)
        monkeypatch.setattr(module, "_leave_without", lambda lock: None)
        return log

    return ask


def rows(log):
    return [json.loads(line) for line in log.read_text().splitlines()]


def test_without_the_command_nothing_is_done():
    model, optimizer = make()
    first, second = (
        switch_ema.trial(model, optimizer),
        switch_ema.trial(model, optimizer),
    )
    assert not first.is_active and not second.is_active
    assert not optimizer._optimizer_step_post_hooks
    first.end_epoch()
    assert first.evaluate(lambda: {"loss": 0.5}) == {"loss": 0.5}


def test_every_method_is_measured_on_its_own_weights(asked):
    log = asked("plain", "ema:decay=0.5,warmup=none", "lawa:k=2")
    model, optimizer = make()
    ema = switch_ema.EMA(model, optimizer, decay=switch_ema.constant(0.5))
    own = switch_ema.trial(model, optimizer)
    expected = []
    for _ in range(2):
        step(model, optimizer)
        own.end_epoch()
        returned = own.evaluate(lambda: {"weight": model.weight.sum()})
        assert returned == {"weight": model.weight.sum()}
        expected.append(float(ema.averaged_state_dict()["weight"].sum()))
    header, *lines = rows(log)
    assert header["trial"]["trained"]["Network"] == "Linear, 4 parameters"
    assert list(header["options"]) == ["plain", "ema:decay=0.5,warmup=none", "lawa:k=2"]
    assert [line["epoch"] for line in lines] == [1, 2]
    found = [line["ema:decay=0.5,warmup=none"]["weight"] for line in lines]
    assert found == pytest.approx(expected, rel=1e-6)
    assert lines[-1]["plain"]["weight"] == model.weight.sum().item()


def test_switch_ema_switches_at_the_end_of_an_epoch(asked):
    asked("switch-ema:decay=0.5,warmup=none")
    model, optimizer = make()
    own = switch_ema.trial(model, optimizer)
    step(model, optimizer)
    before = model.weight.clone()
    own.end_epoch()
    assert not torch.equal(before, model.weight)


def test_random_numbers_are_those_of_one_evaluation(asked):
    asked("plain", "ema", "ema:decay=0.9")
    model, optimizer = make()
    own = switch_ema.trial(model, optimizer)
    step(model, optimizer)

    def draw():
        return {"torch": torch.rand(()).item(), "python": random.random()}

    state, python = torch.get_rng_state(), random.getstate()
    drawn, after = draw(), draw()
    torch.set_rng_state(state)
    random.setstate(python)
    assert own.evaluate(draw) == drawn
    assert draw() == after


def test_bad_input_is_one_sentence(asked, monkeypatch):
    asked("swa")
    with pytest.raises(ValueError, match="swa needs the length of the training"):
        switch_ema.trial(*make())
    asked("plain")
    own = switch_ema.trial(*make())
    with pytest.raises(RuntimeError, match="was called twice"):
        switch_ema.trial(*make())
    with pytest.raises(TypeError, match=r"returns numbers by name.*got 0\.5"):
        own.evaluate(lambda: 0.5)
    own.evaluate(lambda: {"loss": 1.0})
    with pytest.raises(ValueError, match="same names each time, got loss and then acc"):
        own.evaluate(lambda: {"acc": 1.0})


def test_without_an_optimizer_the_script_counts_its_steps(asked):
    log = asked("plain", "ema:decay=0.5,warmup=none", "swa:start=0")
    model, optimizer = make()
    ema = switch_ema.EMA(model, optimizer, decay=switch_ema.constant(0.5))
    own = switch_ema.trial(model)
    for _ in range(3):
        step(model, optimizer)
        own.update()
    own.end_epoch()
    own.evaluate(lambda: {"weight": model.weight.sum()})
    header, line = rows(log)
    assert header["trial"]["counts_updates"] and line["trial"]["counts_updates"] == 3
    assert "Optimizer" not in header["trial"]["trained"]
    expected = float(ema.averaged_state_dict()["weight"].sum())
    found = line["ema:decay=0.5,warmup=none"]["weight"]
    assert found == pytest.approx(expected, rel=1e-6)


def test_steps_are_not_counted_twice(asked):
    asked("plain", "ema")
    own = switch_ema.trial(*make())
    with pytest.raises(
        RuntimeError, match=r"update\(\) is for a trial without an opti"
    ):
        own.update()


def test_outside_of_a_comparison_no_optimizer_is_needed():
    model, _ = make()
    own = switch_ema.trial(model)
    own.update()
    own.end_epoch()
    assert own.evaluate(lambda: {"loss": 0.5}) == {"loss": 0.5}


def in_child(work):
    """Fork, and return what the child raised, as its exit code."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except RuntimeError as error:
            os._exit(7 if "though another process" in str(error) else 8)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_child_process_with_a_trial_is_refused_and_leaves_its_mark(asked):
    log = asked("plain")
    model, optimizer = make()
    own = switch_ema.trial(model, optimizer)
    assert in_child(lambda: switch_ema.trial(model, optimizer)) == 7
    assert len(set(processes_of(rows(log)))) == 2
    log.write_text(log.read_text().splitlines(keepends=True)[0])
    for use in (own.end_epoch, lambda: own.evaluate(lambda: {"loss": 1.0})):
        assert in_child(use) == 7
    assert len(set(processes_of(rows(log)))) == 3
    assert all("options" in row for row in rows(log))  # and no values


def test_a_launcher_that_starts_anew_is_no_second_process(asked, monkeypatch):
    log = asked("plain")
    for attempt in ("0", "1", "2"):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", attempt)
        monkeypatch.setattr(module, "_begun_in", None)
        switch_ema.trial(*make())
    assert len(rows(log)) == 3 and processes_of(rows(log)) == [os.getpid()]


def test_other_ranks_write_nothing(asked, monkeypatch):
    log = asked("plain")
    monkeypatch.setenv("RANK", "1")
    switch_ema.trial(*make()).evaluate(lambda: {"loss": 1.0})
    assert not log.exists()


def train_sharded(told, is_sharded):
    """Train two epochs on the halves of a batch, and report the average of both."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
    rank, world = 0, 1
    if is_sharded:
        fully_shard(model)
        rank, world = distributed.get_rank(), distributed.get_world_size()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    os.environ[TRIAL] = json.dumps(told)
    module._leave_without, module._begun_in = lambda lock: None, None
    own = switch_ema.trial(model, optimizer)
    x = torch.linspace(-1, 1, 32).view(8, 4).sin()
    for _ in range(2):
        for _ in range(3):
            optimizer.zero_grad()
            (
                model(x[rank::world]) - x[rank::world, :1].exp()
            ).square().mean().backward()
            optimizer.step()
        own.end_epoch()
        # Each rank reports something else of its own: rank 0's counts.
        own.evaluate(lambda: {"mean": model(x).mean().item(), "rank": rank})


@pytest.mark.parametrize("methods", [("plain", "ema:decay=0.9"), ("switch-ema",)])
def test_under_fsdp2_rank_0_reports_what_one_process_does(
    methods, tmp_path, monkeypatch
):
    monkeypatch.setenv(TRIAL, "")
    monkeypatch.setattr(module, "_leave_without", None)
    monkeypatch.setattr(module, "_begun_in", None)
    found = {}
    for is_sharded in (True, False):
        log = tmp_path / f"{is_sharded}.jsonl"
        told = {"methods": methods, "log": str(log), "lock": str(tmp_path / "lock")}
        if is_sharded:
            run(2, train_sharded, told, is_sharded)
        else:
            train_sharded(told, is_sharded)
        lines = rows(log)[1:]
        assert [line["epoch"] for line in lines] == [1, 2]
        assert all(line[m]["rank"] == 0 for line in lines for m in methods)
        found[is_sharded] = [line[m]["mean"] for line in lines for m in methods]
    assert len(set(found[True])) == len(found[True])
    assert found[True] == pytest.approx(found[False], abs=1e-5)


def test_a_training_ends_with_its_comparison(tmp_path):
    lock = tmp_path / "lock"
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        child = os.fork()
        if child == 0:
            file.close()
            _leave_without(lock)
        assert os.waitpid(child, os.WNOHANG) == (0, 0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
