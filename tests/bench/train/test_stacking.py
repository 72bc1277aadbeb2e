"""Comparisons whose seeds are trained at once: planned, resumed, read back."""

import contextlib
import math

import pytest
import torch

from switch_ema.bench.errors import UsageError
from switch_ema.bench.plan.cells import make_plan
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.results.kept_weights import load_kept
from switch_ema.bench.stacking.tasks import StackedTask
from switch_ema.bench.train import loop
from switch_ema.bench.train.context import RunContext
from switch_ema.bench.train.loop import Training, train_cell
from tests.bench.test_compare import run

TASK = "noisy-digits:size=80"
METHODS = ("plain", "ema", "switch-ema")


def config(**more) -> CompareConfig:
    settings = {"tasks": (TASK,), "methods": METHODS, "seeds": 4, "epochs": 3}
    return CompareConfig(**{**settings, "stack": "auto", **more})


def seeds_per_cell(**more) -> set[int]:
    return {len(cell.seeds) for cell in make_plan(config(**more))}


@pytest.mark.zoo
def test_seeds_are_stacked_where_the_task_allows_it():
    assert seeds_per_cell() == {4}
    assert seeds_per_cell(seeds=37) == {32, 5}
    for task in ("mnist1d:size=100", "rotation", "classification", "images"):
        assert seeds_per_cell(tasks=(task,)) == {4}


@pytest.mark.parametrize(
    "more",
    [
        {"stack": "off"},
        {"seeds": 3},
        {"tasks": ("mnist1d:network=gru",)},
        {"optimizer": "sam"},
        {"optimizer": "lars"},
        {"optimizer": "schedulefree-sgd"},
        {"precision": "bf16"},
        {"methods": ("plain", "ema:include=0.*")},
        {"methods": ("plain", "posthoc-ema")},
    ],
)
def test_seeds_are_trained_one_by_one_where_a_stack_would_differ(more):
    assert seeds_per_cell(**more) == {1}


def test_a_stored_comparison_without_the_setting_is_not_stacked():
    stored = config(stack="off").to_json()
    assert '"stack"' not in stored
    assert CompareConfig.from_json(stored).stack == "off"
    assert CompareConfig.from_json(config().to_json()).stack == "auto"
    with pytest.raises(UsageError, match="stack must be auto, all or off, got 'on'"):
        config(stack="on")


@pytest.mark.parametrize("more", [{}, {"clip": 0.5}, {"optimizer": "adamw:lr=0.01"}])
def test_values_are_those_of_trainings_alone(tmp_path, more):
    context = RunContext(tmp_path, "cpu")
    stacked = {cell.methods: cell for cell in make_plan(config(**more))}
    alone = [c for c in make_plan(config(stack="off", **more)) if c.seeds == (2,)]
    for cell in alone:
        found = train_cell(stacked[cell.methods], context).values
        for method, metrics in train_cell(cell, context).values.items():
            for (expected,), own in zip(
                metrics["nll"], found[method]["nll"], strict=True
            ):
                assert own[2] == pytest.approx(expected, rel=1e-3)


RATES = ("plain", "ema", "switch-ema", "plain@lr*0.25", "ema@lr*0.25", "ema@lr*f")
RATES = (*RATES, "switch-ema@lr=0.2", "switch-ema@momentum=0.5")


def test_learning_rates_are_stacked_where_methods_differ_in_them_alone():
    found = make_plan(config(methods=RATES, stack="all"))
    assert sorted((cell.methods, len(cell.networks)) for cell in found) == [
        (("ema@lr*f",), 4),
        (("plain", "ema", "plain@lr*0.25", "ema@lr*0.25"), 8),
        (("switch-ema", "switch-ema@lr=0.2"), 8),
        (("switch-ema@momentum=0.5",), 4),
    ]
    apart = make_plan(config(methods=RATES))
    assert {len(cell.variants) for cell in apart} == {1} and len(apart) == 6
    alone = make_plan(config(methods=RATES, stack="all", seeds=2))
    assert {len(cell.networks) for cell in alone} == {1}


def test_values_at_stacked_rates_are_those_of_trainings_at_one(tmp_path):
    context, rates = RunContext(tmp_path, "cpu"), RATES[:5] + RATES[6:7]
    expected = {}
    for cell in make_plan(config(methods=rates)):
        expected |= train_cell(cell, context).values
    together = make_plan(config(methods=rates, stack="all"))
    assert len(together) == 2
    for cell in together:
        for method, metrics in train_cell(cell, context).values.items():
            torch.testing.assert_close(
                torch.tensor(metrics["nll"]),
                torch.tensor(expected.pop(method)["nll"]),
                rtol=1e-3,
                atol=0.0,
            )
    assert not expected


def test_a_rate_that_diverges_leaves_the_others_alone(tmp_path):
    methods = ("plain", "plain@lr=1e30")
    [cell] = make_plan(config(methods=methods, stack="all"))
    values = train_cell(cell, RunContext(tmp_path, "cpu")).values
    assert all(map(math.isfinite, values["plain"]["nll"][-1]))
    assert all(map(math.isnan, values["plain@lr=1e30"]["nll"][-1]))


class Killed(BaseException):
    """The process ends here."""


def test_a_stack_is_resumed_bit_for_bit(tmp_path, monkeypatch):
    cell = next(c for c in make_plan(config()) if c.methods == ("switch-ema",))
    whole = train_cell(cell, RunContext(tmp_path / "whole", "cpu"))
    original, calls = loop.take_step, 0

    def dies(*arguments):
        nonlocal calls
        calls += 1
        if calls == 8:  # in the second epoch
            raise Killed
        return original(*arguments)

    monkeypatch.setattr(loop, "take_step", dies)
    with contextlib.suppress(Killed):
        train_cell(cell, RunContext(tmp_path / "killed", "cpu"))
    monkeypatch.undo()
    assert (
        train_cell(cell, RunContext(tmp_path / "killed", "cpu")).values == whole.values
    )


def test_a_seed_that_diverges_has_no_value_and_the_others_keep_theirs(tmp_path):
    cell = next(c for c in make_plan(config()) if c.methods == ("switch-ema",))
    whole = train_cell(cell, RunContext(tmp_path / "whole", "cpu"))
    context = RunContext(tmp_path / "broken", "cpu")
    broken = Training(cell, context)
    assert isinstance(broken.task, StackedTask)
    broken.task.tasks[1].x[0] = math.inf
    result = broken.run()
    assert result.status == "done" and "seed 1" in result.message
    for own, values in zip(
        whole.values["switch-ema"]["nll"],
        result.values["switch-ema"]["nll"],
        strict=True,
    ):
        assert math.isnan(values[1])
        others = [values[i] for i in (0, 2, 3)]
        assert others == pytest.approx([own[i] for i in (0, 2, 3)], rel=1e-5)
    # Also after it was resumed, whether or not the data is whole again.
    resumed = Training(cell, context)
    loop.load_checkpoint(resumed)
    assert resumed.task.has_stopped.tolist() == [False, True, False, False]


@pytest.mark.parametrize("method", ["switch-ema:switch_every=2it", "lookahead:k=2"])
def test_a_seed_that_a_step_makes_infinite_does_not_stop_the_others(tmp_path, method):
    (cell,) = make_plan(config(methods=(method,)))
    whole = train_cell(cell, RunContext(tmp_path / "whole", "cpu"))
    broken, steps = Training(cell, RunContext(tmp_path / "broken", "cpu")), 0

    def break_gradients(optimizer, *_):
        nonlocal steps
        steps += 1
        if steps == 4:  # a switch is due at its end
            next(broken.model.parameters()).grad[1] = math.inf

    broken.optimizer.register_step_pre_hook(break_gradients)
    result = broken.run()
    assert result.status == "done" and "seed 1" in result.message
    for own, values in zip(
        whole.values[method]["nll"], result.values[method]["nll"], strict=True
    ):
        assert math.isnan(values[1])
        others = [values[i] for i in (0, 2, 3)]
        assert others == pytest.approx([own[i] for i in (0, 2, 3)], rel=1e-5)


def test_kept_weights_are_the_first_seeds_network(tmp_path):
    slow = "switch-ema@lr*0.25"  # in one stack with Switch EMA at the task's rate
    rates = config(methods=(*METHODS, slow), stack="all")
    path, _ = run(rates, tmp_path)
    (kept,) = load_kept(path.parent, rates.methods, device="cpu")
    assert not kept.is_stacked and set(kept.weights) == {*METHODS, slow}
    assert [len(points) for points in kept.trajectory.values()] == [4, 4, 4, 4]
    assert torch.equal(
        kept.trajectory["ema"][-1]["0.weight"], kept.weights["ema"]["0.weight"]
    )
    cell = next(c for c in make_plan(rates) if slow in c.methods)
    found = train_cell(cell, RunContext(tmp_path / "again", "cpu")).values
    for method in ("switch-ema", slow):
        kept.model.load_state_dict(kept.weights[method])
        with torch.no_grad():
            measured = kept.task.evaluate(kept.model.eval())
        expected = found[method]["nll"][-1][0]
        assert measured["nll"] == pytest.approx(expected, rel=1e-5)
