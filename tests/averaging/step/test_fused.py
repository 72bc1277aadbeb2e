"""Optimizers that average in their step: the same numbers as torch's and an average."""

import copy
import gc
import subprocess
import sys
import warnings
import weakref

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.optim.lr_scheduler import CosineAnnealingLR

from switch_ema import EMA, SwitchEMA, constant, count_warmup
from switch_ema.averaging.step import blocks, fused, one_pass
from switch_ema.averaging.step.fused import FusedAdam, FusedAdamW, FusedSGD
from switch_ema.averaging.step.native_step import NativeStep
from switch_ema.averaging.step.one_pass import OnePass
from tests.averaging.conftest import KINDS as ARITHMETIC
from tests.averaging.helpers import assert_same, copy_of

KINDS = {
    "adamw": (torch.optim.AdamW, FusedAdamW, {"lr": 1e-2, "weight_decay": 0.1}),
    "amsgrad": (torch.optim.AdamW, FusedAdamW, {"lr": 1e-2, "amsgrad": True}),
    "adam": (torch.optim.Adam, FusedAdam, {"lr": 1e-2, "betas": (0.8, 0.9)}),
    "maximize": (torch.optim.Adam, FusedAdam, {"lr": 1e-3, "maximize": True}),
    "sgd": (torch.optim.SGD, FusedSGD, {"lr": 0.05}),
    "momentum": (
        torch.optim.SGD,
        FusedSGD,
        {"lr": 0.05, "momentum": 0.9, "dampening": 0.1, "weight_decay": 0.01},
    ),
    "nesterov": (
        torch.optim.SGD,
        FusedSGD,
        {"lr": 0.02, "momentum": 0.9, "nesterov": True},
    ),
}


class Network(nn.Module):
    """Small and large tensors, batch norm, channels last, and a part used at times."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, bias=False).to(memory_format=torch.channels_last)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(4 * 36, 10)
        self.sometimes = nn.Linear(10, 10)

    def forward(self, x, more):
        x = self.head(self.norm(self.stem(x)).relu().flatten(1))
        return self.sometimes(x) if more else x


def pair(kind, averager, **options):
    """The same network twice: with torch's optimizer, and with ours."""
    torch.manual_seed(0)
    first = Network().double()
    second = copy.deepcopy(first)
    plain, fused, settings = KINDS[kind]
    optimizers = plain(groups(first), **settings), fused(groups(second), **settings)
    made = [
        averager(model, optimizer, **options)
        for model, optimizer in zip((first, second), optimizers, strict=True)
    ]
    return (first, second), optimizers, made


def groups(model):
    vectors = [p for p in model.parameters() if p.ndim == 1]
    others = [p for p in model.parameters() if p.ndim > 1]
    return [{"params": others}, {"params": vectors, "weight_decay": 0.0}]


def train(model, optimizer, steps, seed=1):
    generator = torch.Generator().manual_seed(seed)
    for step in range(steps):
        x = torch.randn(8, 1, 8, 8, generator=generator, dtype=torch.float64)
        y = torch.randint(10, (8,), generator=generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x, step % 3 == 1), y).backward()
        optimizer.step()


@pytest.fixture(params=[*ARITHMETIC[:-1], 7, 1 << 17])
def way(request, monkeypatch):
    """In C; with tensors cut into many pieces; and with all in one block."""
    if request.param != "c":
        request.getfixturevalue("without_compiler")
        monkeypatch.setattr(blocks, "BLOCK", request.param)


def assert_same_averages(averagers):
    wanted, found = (averager.averaged_state_dict() for averager in averagers)
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=1e-6, atol=1e-6)


def compare_thousand_steps(models, optimizers, averagers):
    schedules = [CosineAnnealingLR(optimizer, 1000) for optimizer in optimizers]
    for epoch in range(10):
        for model, optimizer, averager, schedule in zip(
            models, optimizers, averagers, schedules, strict=True
        ):
            train(model, optimizer, 100, seed=epoch)
            schedule.step()
            averager.end_epoch()
    assert_same_averages(averagers)
    for one, other in zip(*(m.parameters() for m in models), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", ["adamw", "maximize", "sgd", "nesterov"])
def test_one_compiled_pass_is_the_same_and_is_compiled_once(kind, without_compiler):
    models, optimizers, averagers = pair(kind, SwitchEMA, decay=count_warmup(0.99))
    optimizers[1]._one_pass = OnePass(compiles=True)
    before = counters["stats"]["unique_graphs"]
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        compare_thousand_steps(models, optimizers, averagers)
    # With and without the part that is used at times, and never once more.
    versions = len(optimizers[1]._one_pass._versions)
    assert versions in (1, 2)
    assert counters["stats"]["unique_graphs"] - before == versions


def test_without_torch_compile_it_says_so_once_and_is_right(
    without_compiler, monkeypatch
):
    def fail(row):
        raise RuntimeError("no compiler\nat all")

    monkeypatch.setattr(one_pass, "_compile", fail)
    models, optimizers, averagers = pair("adamw", EMA, decay=constant(0.9))
    optimizers[1]._one_pass = OnePass(compiles=True)
    train(models[0], optimizers[0], 3)
    with pytest.warns(UserWarning, match="block by block: no compiler.") as seen:
        train(models[1], optimizers[1], 3)
    assert len(seen) == 1
    assert_same_averages(averagers)


@pytest.mark.filterwarnings("ignore:No working C compiler")
@pytest.mark.parametrize("kind", KINDS)
def test_a_thousand_steps_are_torch_and_a_separate_average(kind, way):
    models, optimizers, averagers = pair(kind, SwitchEMA, decay=count_warmup(0.99))
    compare_thousand_steps(models, optimizers, averagers)


def test_without_a_c_compiler_it_says_so_once_and_is_right(without_compiler):
    fused._say_that_there_is_no_compiler.cache_clear()
    models, optimizers, averagers = pair("adamw", EMA, decay=constant(0.9))
    train(models[0], optimizers[0], 3)
    with pytest.warns(UserWarning, match="No working C compiler") as seen:
        train(models[1], optimizers[1], 3)
    assert len(seen) == 1
    assert_same_averages(averagers)


def watched(monkeypatch, owner, name):
    """Record how many parameters are averaged before and after each call."""
    seen = []
    original = getattr(owner, name)

    def watching(*arguments):
        average = next(a for a in arguments if isinstance(a, blocks.StepAverage))
        before = len(average.done)
        result = original(*arguments)
        seen.append((before, len(average.done)))
        return result

    monkeypatch.setattr(owner, name, watching)
    return seen


@pytest.mark.filterwarnings("ignore:No working C compiler")
@pytest.mark.parametrize("kind", ["adamw", "momentum"])
def test_the_average_is_really_taken_in_the_step(kind, monkeypatch, arithmetic):
    (_, model), (_, optimizer), _ = pair(kind, EMA, decay=constant(0.9))
    train(model, optimizer, 1)  # momentum begins otherwise than it goes on
    in_c = watched(monkeypatch, NativeStep, "run")
    in_blocks = watched(monkeypatch, fused, "step_and_average")
    train(model, optimizer, 1)
    if arithmetic == "c":  # all but the part that has no gradient
        assert in_c[-1][1] == 5
        assert all(before == after for before, after in in_blocks)
    else:  # vectors are averaged in packs, after the step
        assert all(before == after for before, after in in_c)
        assert in_blocks[-1][1] == 2


def test_a_graph_from_before_the_step_is_known_to_be_outdated():
    """As with torch's optimizers: its weights were changed in place."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    optimizer = FusedAdamW(model.parameters(), lr=0.1)
    EMA(model, optimizer, decay=constant(0.9))
    loss = model(torch.ones(2, 3)).sum()
    loss.backward(retain_graph=True)
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.filterwarnings("ignore:No working C compiler")
def test_gradients_of_another_order_are_put_in_order(arithmetic):
    """Which torch's fused kernels do not do, so the slow ones are the reference."""
    torch.manual_seed(0)
    models = [nn.Linear(6, 4), nn.Linear(6, 4)]
    models[1].load_state_dict(models[0].state_dict())
    plain = torch.optim.AdamW(models[0].parameters(), lr=0.1)
    ours = FusedAdamW(models[1].parameters(), lr=0.1)
    averagers = [
        EMA(m, o, decay=constant(0.9))
        for m, o in zip(models, (plain, ours), strict=True)
    ]
    for step in range(3):
        gradient = torch.randn(6, 4, generator=torch.Generator().manual_seed(step))
        for model, optimizer in zip(models, (plain, ours), strict=True):
            model.weight.grad = gradient.t()
            model.bias.grad = torch.ones(4)
            optimizer.step()
    assert_same_averages(averagers)


def turned(models, optimizers, kinds):
    for model in models:
        model.to(memory_format=torch.channels_last)
    return models, optimizers


def resumed(models, optimizers, kinds):
    """Copies in another memory format, with a loaded state."""
    copies = [copy.deepcopy(m).to(memory_format=torch.channels_last) for m in models]
    made = []
    for kind, model, optimizer in zip(kinds, copies, optimizers, strict=True):
        made.append(kind(model.parameters(), lr=0.1))
        made[-1].load_state_dict(optimizer.state_dict())
    return copies, made


def step_on_ones(model, optimizer):
    for parameter in model.parameters():
        if parameter.requires_grad:
            count = torch.arange(parameter.numel(), dtype=parameter.dtype)
            ordered = count.reshape(parameter.shape).sin()
            parameter.grad = torch.empty_like(parameter).copy_(ordered)
    optimizer.step()


@pytest.mark.filterwarnings("ignore:No working C compiler")
@pytest.mark.parametrize("change", [turned, resumed])
@pytest.mark.parametrize("every", [None, 1, 2])
@pytest.mark.parametrize("kind", ["adamw", "momentum", "amsgrad"])
def test_moments_follow_weights_into_another_order(kind, every, change, arithmetic):
    """Which torch's fused kernels do not notice, so the slow ones are the reference."""
    *kinds, options = KINDS[kind]
    models = [nn.Conv2d(3, 4, 3) for _ in kinds]
    models[1].load_state_dict(models[0].state_dict())
    optimizers = [
        one(model.parameters(), **options)
        for one, model in zip(kinds, models, strict=True)
    ]
    averagers = []
    for phase in range(2):
        if phase:
            models, optimizers = change(models, optimizers, kinds)
        if every and not (phase and change is turned):
            averagers = [
                EMA(m, o, decay=constant(0.9), update_every=every)
                for m, o in zip(models, optimizers, strict=True)
            ]
        for model, optimizer in zip(models, optimizers, strict=True):
            for _ in range(3):
                step_on_ones(model, optimizer)
    torch.testing.assert_close(*(model.weight for model in models))
    if averagers:
        assert_same_averages(averagers)


@pytest.mark.parametrize("kind", ["adamw", "sgd", "momentum"])
@pytest.mark.parametrize("averages", [False, True])
@pytest.mark.parametrize("has_gaps", [False, True])
def test_weights_with_gaps_in_their_memory(kind, averages, has_gaps):
    """Only their own elements change, whether or not their gradients have gaps."""
    *kinds, options = KINDS[kind]
    memories, averagers = [], []
    for one in kinds:
        memory, model = torch.ones(3, 6), nn.Module()
        model.weight = nn.Parameter(memory[:, :3])
        optimizer = one(model.parameters(), **options)
        ema = EMA(model, optimizer, decay=constant(0.9)) if averages else None
        for step in range(3):
            gradient = torch.full((3, 6), 1.0 + step)[:, :3]
            model.weight.grad = gradient if has_gaps else gradient.contiguous()
            optimizer.step()
        memories.append(memory)
        averagers.append(ema)
    torch.testing.assert_close(*memories)
    if averages:
        assert_same_averages(averagers)


@pytest.mark.parametrize("every", [None, 1, 2])
def test_a_layer_that_is_unfrozen_at_any_step_starts_its_momentum(every):
    *kinds, options = KINDS["momentum"]
    for at in (2, 3):
        models = []
        for one in kinds:
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
            model[0].requires_grad_(False)
            optimizer = one(model.parameters(), **options)
            if every:
                EMA(model, optimizer, update_every=every)
            for step in range(5):
                model[0].requires_grad_(step >= at)
                step_on_ones(model, optimizer)
            models.append(model)
        for one, other in zip(*(m.parameters() for m in models), strict=True):
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ours_first", [True, False])
def test_state_dicts_are_torchs_both_ways(kind, ours_first):
    models, optimizers, _ = pair(kind, EMA, decay=constant(0.9))
    order = (1, 0) if ours_first else (0, 1)
    source, target = (optimizers[i] for i in order)
    first, second = (models[i] for i in order)
    train(first, source, 4)
    second.load_state_dict(first.state_dict())
    target.load_state_dict(copy.deepcopy(source.state_dict()))
    train(first, source, 4, seed=2)
    train(second, target, 4, seed=2)
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("fused", [True, False])
def test_a_loaded_state_does_not_change_where_the_average_is_taken(fused, monkeypatch):
    """``fused`` is None in a state of torch's AdamW, and may be False in ours."""
    (_, model), (plain, _), _ = pair("adamw", EMA)
    ours = FusedAdamW(groups(model), fused=fused)
    EMA(model, ours, decay=constant(0.9))
    ours.load_state_dict(plain.state_dict())
    assert [group["fused"] for group in ours.param_groups] == [fused, fused]
    assert ours.param_groups[0]["lr"] == KINDS["adamw"][2]["lr"]
    in_c = watched(monkeypatch, NativeStep, "run")
    train(model, ours, 1)
    assert bool(in_c) == fused
    with pytest.raises(ValueError, match="different number of parameter groups"):
        ours.load_state_dict(FusedAdamW(model.parameters()).state_dict())


def test_a_step_skipped_for_overflow_moves_neither():
    (_, model), (_, optimizer), (_, ema) = pair("adamw", EMA, decay=constant(0.5))
    assert optimizer._next_average is not None
    train(model, optimizer, 2)
    before, average = copy_of(model.state_dict()), ema.averaged_state_dict()
    scaler = torch.amp.GradScaler("cpu")
    optimizer.zero_grad()
    output = model(torch.randn(8, 1, 8, 8).double(), True)
    scaler.scale(output.sum() * float("inf")).backward()
    before |= {k: v.clone() for k, v in model.state_dict().items() if "norm" in k}
    scaler.step(optimizer)
    assert_same(copy_of(model.state_dict()), before)
    assert ema.steps == 2
    for name, value in ema.averaged_state_dict().items():
        if "running" not in name and "batches" not in name:
            assert torch.equal(value, average[name])


def test_update_every_and_later_averagers_are_separate():
    models, optimizers, first = pair("adamw", EMA, decay=constant(0.9), update_every=3)
    second = [
        EMA(m, o, decay=constant(0.5)) for m, o in zip(models, optimizers, strict=True)
    ]
    for model, optimizer in zip(models, optimizers, strict=True):
        train(model, optimizer, 7)
    for averagers in (first, second):
        assert_same_averages(averagers)


def test_a_closure_and_the_hooks_run_once():
    (_, model), (_, optimizer), (_, ema) = pair("momentum", EMA, decay=constant(0.9))
    calls = []
    optimizer.register_step_post_hook(lambda *_: calls.append("hook"))

    def closure():
        calls.append("closure")
        optimizer.zero_grad()
        loss = model(torch.ones(8, 1, 8, 8).double(), True).square().mean()
        loss.backward()
        return loss

    assert optimizer.step(closure) > 0
    ema.detach()  # from here on as torch does
    assert optimizer.step(closure) > 0
    assert calls == ["closure", "hook"] * 2
    assert ema.steps == 1


def test_what_cannot_be_done_in_blocks_is_done_as_torch_does():
    torch.manual_seed(0)
    model = nn.Embedding(5, 3, sparse=True)
    optimizer = FusedSGD(model.parameters(), lr=0.1, fused=False)
    ema = EMA(model, optimizer, decay=constant(0.5))
    start = model.weight.detach().clone()
    model(torch.tensor([1, 2])).sum().backward()
    optimizer.step()
    middle = (start + model.weight.detach()) / 2
    torch.testing.assert_close(ema.averaged_state_dict()["weight"], middle)


def test_a_detached_averager_is_let_go():
    (_, model), (_, optimizer), averagers = pair("adamw", EMA, decay=constant(0.9))
    train(model, optimizer, 3)
    shadow = weakref.ref(averagers[1]._shadow.tensors[0])
    averagers.pop().detach()
    gc.collect()
    assert shadow() is None


def test_a_copy_averages_with_an_averager_of_its_own():
    (_, model), (_, optimizer), _ = pair("adamw", EMA, decay=constant(0.9))
    train(model, optimizer, 2)
    other, copied = copy.deepcopy((model, optimizer))
    assert copied._in_c is not optimizer._in_c
    ema = EMA(other, copied, decay=constant(0.9))
    train(other, copied, 2)
    assert ema.steps == 2


@pytest.mark.parametrize("optimizer", ["FusedAdam", "FusedAdamW", "FusedSGD"])
def test_steps_as_torch_does_where_nobody_has_made_torchs_own(optimizer):
    """In a process of its own: torch decorates a class when the first one is made."""
    code = f"""
import torch
from switch_ema import {optimizer}
model = torch.nn.Linear(2, 2)
before = model.weight.detach().clone()
optimizer = {optimizer}(model.parameters(), lr=0.1, fused=False)
model(torch.ones(1, 2)).sum().backward()
optimizer.step()
assert not torch.equal(model.weight, before)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)


def test_flat_storage_is_averaged_after_the_step():
    models, optimizers, averagers = pair("adamw", EMA, decay=constant(0.9), flat=True)
    for model, optimizer in zip(models, optimizers, strict=True):
        train(model, optimizer, 3)
    assert averagers[1]._shadow.pairs_in_step() == {}
    assert_same_averages(averagers)


def test_what_was_hooked_before_acts_before_the_average():
    """A clamp that was registered first: the average is that of clamped weights."""
    averages = []
    for optimizer_class in (torch.optim.SGD, FusedSGD):
        torch.manual_seed(0)
        model = nn.Linear(4, 4)
        optimizer = optimizer_class(model.parameters(), lr=0.5)
        optimizer.register_step_post_hook(
            lambda *_, model=model: model.weight.data.clamp_(-0.1, 0.1)
        )
        ema = EMA(model, optimizer, decay=constant(0.9))
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(2, 4)).square().sum().backward()
            optimizer.step()
        averages.append(ema.averaged_state_dict()["weight"])
    torch.testing.assert_close(*averages)
