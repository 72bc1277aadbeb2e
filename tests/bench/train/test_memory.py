"""The size of a training's state, counted by hand."""

from contextlib import closing

import pytest
import torch
from torch import nn

from switch_ema import EMA, LAWA, SwitchEMA
from switch_ema.bench.compare import run_comparison
from switch_ema.bench.execute.options import RunOptions
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.results.folder import open_run
from switch_ema.bench.results.store import MEMORY
from switch_ema.bench.stats.summarize import summarize
from switch_ema.bench.train.memory import state_mb, storages, tensors_in

BYTES = 4 * (100 * 50 + 50)
"""Of the weights of a linear layer in float32."""


def trained(optimizer_class, **options):
    model = nn.Linear(100, 50)
    optimizer = optimizer_class(model.parameters(), lr=0.1, **options)
    return model, optimizer


def step(model, optimizer):
    optimizer.zero_grad(set_to_none=True)
    model(torch.ones(3, 100)).sum().backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)  # gradients count although they are gone


@pytest.mark.parametrize(
    ("make", "copies"),
    [
        (lambda: trained(torch.optim.SGD), 2),
        (lambda: trained(torch.optim.SGD, momentum=0.9), 3),
        (lambda: trained(torch.optim.Adam), 4),
    ],
)
def test_weights_gradients_and_optimizer_state_count(make, copies):
    model, optimizer = make()
    step(model, optimizer)
    few = 100  # bytes of Adam's counters of steps
    assert 0 <= state_mb(model, [optimizer], []) * 1e6 - copies * BYTES < few


@pytest.mark.parametrize(
    ("make", "copies"),
    [
        (lambda *of: EMA(*of, decay=0.9), 1),
        (lambda *of: EMA(*of, decay=0.9, dtype=torch.bfloat16), 0.5),
        (lambda *of: SwitchEMA(*of, decay=0.9), 1),
        (lambda *of: LAWA(*of, k=3, every=1), 1 + 3),
    ],
)
def test_an_average_counts_once_with_all_that_it_keeps(make, copies):
    model, optimizer = trained(torch.optim.SGD)
    averager = make(model, optimizer)
    for _ in range(4):
        step(model, optimizer)
        averager.end_epoch()
    with averager.averaged():
        pass
    plain = state_mb(model, [optimizer], [])
    added = state_mb(model, [optimizer], [averager]) - plain
    assert added * 1e6 == pytest.approx(copies * BYTES, rel=0.01)
    twice = state_mb(model, [optimizer], [averager, averager]) - plain
    assert twice == added


def test_frozen_weights_have_no_gradient_and_shared_ones_count_once():
    model = nn.Sequential(nn.Linear(10, 10, bias=False), nn.Linear(10, 10, bias=False))
    model[1].weight = model[0].weight
    assert state_mb(model, [], []) * 1e6 == 2 * 400
    model.requires_grad_(False)
    assert state_mb(model, [], []) * 1e6 == 400


def test_tensors_without_storage_and_models_of_others_are_left_out():
    sparse = torch.eye(3).to_sparse()
    assert storages([sparse, torch.empty(0)]) == set()
    ring = [torch.ones(2)]
    ring.append(ring)
    assert len(tensors_in({"a": ring, "model": nn.Linear(2, 2)})) == 1


@pytest.mark.parametrize("stack", ["off", "auto"])
def test_the_cost_of_a_comparison_is_that_of_the_model(tmp_path, stack):
    config = CompareConfig(
        tasks=("digits:size=100",),
        methods=("plain", "ema", "switch-ema"),
        seeds=4,
        epochs=1,
        stack=stack,
    )
    options = RunOptions(out=tmp_path, name="run", executor="inline", device="cpu")
    run = run_comparison(config, options)
    shared, own = run.summary.tasks[0].costs
    assert shared.methods == ("plain", "ema") and own.methods == ("switch-ema",)
    # Both have one average; the process has hundreds of MB, most of them torch's.
    assert shared.memory_mb == pytest.approx(own.memory_mb, rel=0.02)
    assert 0.01 < shared.memory_mb < 1
    settings, results = open_run(tmp_path / "run")
    with closing(results):  # as in runs that stored the memory of the process
        results.set_meta(MEMORY, "")
        (task,) = summarize(settings, results, "run").tasks
    assert all(cost.memory_mb != cost.memory_mb for cost in task.costs)
