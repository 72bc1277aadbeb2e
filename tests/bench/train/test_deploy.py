"""Rounded weights equal a naive reference, and are evaluated after the last epoch."""

import copy
import dataclasses
import json
import math

import pytest
import torch
from torch import nn

from switch_ema.averaging.best import Best
from switch_ema.bench.plan.cells import HELD_OUT, Cell, make_plan
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.recipe import ROUNDINGS, Recipe
from switch_ema.bench.train.context import RunContext
from switch_ema.bench.train.deploy import round_weights, rounded
from switch_ema.bench.train.loop import Training, train_cell

METHODS = ("plain", "ema:decay=0.9", "switch-ema")


def naive(weight, kind):
    """Round number by number in float64, channel by channel."""
    if kind == "bf16":
        return [[torch.tensor(v).bfloat16().item() for v in row] for row in weight]
    most = {"int8": 127, "int4": 7}[kind]
    found = []
    for row in weight:
        scale = max(map(abs, row)) / most
        found.append([round(v / scale) * scale if scale else 0.0 for v in row])
    return found


@pytest.mark.parametrize("kind", ROUNDINGS)
@pytest.mark.parametrize("shape", [(5, 7), (4, 3, 2, 2), (6, 1), (2, 40)])
def test_weights_are_rounded_as_by_the_naive_reference(kind, shape):
    generator = torch.Generator().manual_seed(3)
    scales = torch.logspace(-30, 3, shape[0]).reshape(-1, *[1] * (len(shape) - 1))
    weight = torch.randn(shape, generator=generator) * scales
    weight[-1] *= 0  # a channel of zeros stays zero
    [found] = round_weights({"weight": weight}, kind).values()
    expected = torch.tensor(naive(weight.flatten(1).tolist(), kind))
    assert found.dtype == torch.float32 and found.shape == weight.shape
    assert torch.equal(found.flatten(1), expected)
    if math.prod(shape) > shape[0]:
        assert not torch.equal(found, weight)


@pytest.mark.parametrize(("kind", "most"), [("int8", 127), ("int4", 7)])
def test_integers_agree_with_torchao(kind, most):
    from torchao.quantization import quant_primitives as primitives

    weight = torch.randn(20, 30, generator=torch.Generator().manual_seed(3))
    weight[4] *= 1e-3
    rows, kinds = (1, 30), (torch.int8, -most, most)
    scale, zero = primitives.choose_qparams_affine(
        weight, primitives.MappingType.SYMMETRIC, rows, *kinds
    )
    integers = primitives.quantize_affine(weight, rows, scale, zero, *kinds)
    expected = primitives.dequantize_affine(integers, rows, scale, zero, *kinds)
    [found] = round_weights({"weight": weight}, kind).values()
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("kind", ROUNDINGS)
def test_vectors_integers_and_empty_tensors_stay(kind):
    state = {
        "bias": torch.rand(9),
        "scale": torch.tensor(0.3),
        "ids": torch.arange(6).reshape(2, 3),
        "empty": torch.empty(0, 3),
    }
    found = round_weights(state, kind)
    assert all(found[name] is tensor for name, tensor in state.items())


@pytest.mark.parametrize("kind", ROUNDINGS)
def test_each_network_of_a_stack_is_rounded_alone(kind):
    torch.manual_seed(0)
    state = {"weight": torch.randn(3, 4, 5), "bias": torch.randn(3, 4)}
    found = round_weights(state, kind, stacked=True)
    for index in range(3):
        alone = round_weights({n: t[index] for n, t in state.items()}, kind)
        assert torch.equal(found["weight"][index], alone["weight"])
        assert torch.equal(found["bias"][index], alone["bias"])


def test_a_model_gets_its_weights_back_to_the_bit():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(KeyError), rounded(model, "int4"):
        inside = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        raise KeyError
    changed = [name for name in before if not torch.equal(inside[name], before[name])]
    assert changed == ["0.weight", "2.weight"]
    after = model.state_dict()
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert all(parameter.requires_grad for parameter in model.parameters())


def plan(task, **options):
    return make_plan(CompareConfig(tasks=(task,), methods=METHODS, **options))


def test_the_last_weights_of_every_method_are_evaluated_rounded(tiny, tmp_path):
    [cell, *_] = plan(tiny, seeds=1, deploy="bf16,int8,int4")
    training = Training(cell, RunContext(tmp_path / "a", "cpu"))
    values = training.run().values
    without = plan(tiny, seeds=1)[0]
    plainly = train_cell(without, RunContext(tmp_path / "b", "cpu"))
    for method, averager in training.averagers.items():
        metrics = values[method]
        assert [*metrics] == ["error", "slope", *(f"error ({k})" for k in ROUNDINGS)]
        assert metrics["error"] == plainly.values[method]["error"]  # trained the same
        for kind in ROUNDINGS:
            *earlier, [last] = metrics[f"error ({kind})"]
            assert len(earlier) == 2 and all(math.isnan(v) for [v] in earlier)
            model = copy.deepcopy(training.model) if averager is None else None
            model = model or averager.averaged_copy()
            assert last == error_of(training.task, model.eval(), kind)


@torch.no_grad()
def error_of(task, model, kind):
    """Evaluate a network with the weights of the naive reference."""
    for parameter in model.parameters():
        if parameter.ndim == 2:
            parameter.copy_(torch.tensor(naive(parameter.tolist(), kind)))
    return task.evaluate(model)["error"]


def test_stacked_seeds_have_the_values_of_seeds_alone(tmp_path):
    task = "noisy-digits:size=80"
    stacked, *_ = plan(task, seeds=4, epochs=2, stack="auto", deploy="int4")
    found = train_cell(stacked, RunContext(tmp_path / "stack", "cpu")).values
    assert len(stacked.seeds) == 4
    alone = [
        train_cell(cell, RunContext(tmp_path / str(cell.seeds[0]), "cpu")).values
        for cell in plan(task, seeds=4, epochs=2, deploy="int4")
        if cell.methods == stacked.methods
    ]
    for method in stacked.methods:
        values = [own[method]["accuracy (int4)"][-1][0] for own in alone]
        # A weight half way between two levels may round otherwise: one of 1717 images.
        last = found[method]["accuracy (int4)"][-1]
        assert last == pytest.approx(values, abs=0.1)
        assert last != found[method]["accuracy"][-1]


def test_a_resumed_training_has_the_same_rounded_values(tiny, tmp_path):
    [cell, *_] = plan(tiny, seeds=1, deploy="int8")
    whole = train_cell(cell, RunContext(tmp_path / "whole", "cpu"))

    class Killed(BaseException):
        pass

    def die(epoch, latest):
        if epoch == 2:
            raise Killed

    with pytest.raises(Killed):
        train_cell(cell, RunContext(tmp_path / "parts", "cpu"), die)
    resumed = train_cell(cell, RunContext(tmp_path / "parts", "cpu"))
    assert json.dumps(resumed.values) == json.dumps(whole.values)  # NaN equals NaN


def test_a_diverged_training_has_no_rounded_value(tiny, tmp_path):
    [cell, *_] = plan(f"{tiny}:diverge=true", seeds=1, deploy="int8")
    result = train_cell(cell, RunContext(tmp_path, "cpu"))
    assert result.status == "diverged"
    assert json.dumps(result.values["plain"]["error (int8)"]) == "[[NaN], [NaN], [NaN]]"


def test_a_selected_epoch_reports_the_rounded_weights_of_that_epoch(tmp_path):
    """The library's Best, told the same held-out values, beside the loop."""
    label = "ema+best:decay=0.9"
    recipe = Recipe(epochs=12, deploy="int4")
    task = "noisy-digits:noise=0.4,size=500,batch=10"
    cell = Cell(task, None, recipe, ("plain", label), (1,), HELD_OUT)
    training = Training(cell, RunContext(tmp_path, "cpu"))
    ema = training.averagers[label]
    best = Best(ema, higher_is_better=True, n=100)
    for _ in range(12):
        training._train_epoch()
        training._evaluate()
        best.update(training.selections[label].held_out[-1][0] / 100)
        training.epoch += 1
    assert best.is_better_than_last
    with best.averaged(), rounded(training.model, "int4"), torch.no_grad():
        expected = training.tested.evaluate(training.model.eval())["accuracy"]
    found = training.result.values[label]["accuracy (int4)"]
    assert found[-1] == [expected]


def test_trackers_get_rounded_values_once(tiny, tmp_path, monkeypatch):
    [cell, *_] = plan(tiny, seeds=1, deploy="int8")
    training = Training(cell, RunContext(tmp_path, "cpu"))
    training.context = dataclasses.replace(training.context, trackers=("any",))
    logged = []
    monkeypatch.setattr(training, "_start_trackers", lambda: None)
    monkeypatch.setattr(
        training.accelerator, "log", lambda values, step: logged.append(values)
    )
    training.run()
    with_rounded = ["plain/error (int8)" in values for values in logged]
    assert with_rounded == [False, False, True]
