"""Digests of trainings: of what they start from, see first and end in."""

import numpy
import pytest
import torch
from torch import nn

from switch_ema.bench.plan.cells import make_plan
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.train import loop
from switch_ema.bench.train.context import RunContext
from switch_ema.bench.train.loop import train_cell
from switch_ema.bench.train.starts import batch_digests, weight_digests

BATCHES = [
    (torch.arange(6.0).reshape(2, 3), torch.tensor([1, 2])),
    {"x": torch.zeros(2, dtype=torch.bfloat16), "names": ["a", "b"]},
    [numpy.arange(4), {"box": torch.empty(0, 4)}, 3, None],
    torch.tensor(True),
]


@pytest.mark.parametrize("batch", BATCHES, ids=range(len(BATCHES)))
def test_a_batch_of_any_form_has_a_digest(batch):
    (digest,) = batch_digests(batch, 1, stacked=False)
    others = [batch_digests(other, 1, stacked=False)[0] for other in BATCHES]
    assert others.count(digest) == 1


def test_one_number_changes_the_digest_of_a_batch_and_no_address_does():
    first, second = torch.zeros(2, 100_000), torch.zeros(2, 100_000)
    assert batch_digests((first, object()), 1, stacked=False) == batch_digests(
        (second, object()), 1, stacked=False
    )
    second[-1, -1] = 1
    assert batch_digests(first, 1, stacked=False) != batch_digests(
        second, 1, stacked=False
    )
    each = batch_digests(second, 2, stacked=True)  # the seed is the first dimension
    assert each[0] == batch_digests(first, 2, stacked=True)[0] != each[1]


def test_weights_that_do_not_exist_yet_have_no_digest():
    assert weight_digests(nn.LazyLinear(2), 1, stacked=False) == []
    with torch.device("meta"):
        assert weight_digests(nn.Linear(2, 2), 1, stacked=False) == []


def test_buffers_count_as_weights():
    model = nn.BatchNorm1d(3)
    before = weight_digests(model, 1, stacked=False)
    model.running_mean += 1
    assert weight_digests(model, 1, stacked=False) != before


@pytest.mark.parametrize("task", ["noisy-digits:size=80", "moons", "mnist1d:size=100"])
def test_stacked_seeds_start_as_they_would_alone(tmp_path, task):
    settings = {"tasks": (task,), "seeds": 4, "epochs": 1, "stack": "auto"}
    plain, switching = make_plan(
        CompareConfig(methods=("plain", "switch-ema"), **settings)
    )
    context = RunContext(tmp_path, "cpu")
    found = [train_cell(cell, context).starts for cell in (plain, switching)]
    assert len(set(found[0].weights)) == len(set(found[0].batch)) == 4
    assert found[0].weights == found[1].weights
    assert found[0].batch == found[1].batch
    assert len(set(found[0].end)) == 4


def test_copies_in_a_stack_are_noticed(tmp_path, monkeypatch):
    """Networks that train alike end alike, bit for bit, in any place of a stack."""
    original = loop.create_task

    def same(name, seeds, **more):
        return original(name, (0,) * len(seeds), **more)

    monkeypatch.setattr(loop, "create_task", same)
    config = CompareConfig(
        tasks=("noisy-digits:size=80",), methods=("plain",), seeds=4, stack="auto"
    )
    (cell,) = make_plan(config)
    result = train_cell(cell, RunContext(tmp_path, "cpu"))
    assert len(cell.seeds) == 4 and len(set(result.starts.end)) == 1


def test_a_resumed_training_keeps_the_digest_of_its_first_batch(
    config, tmp_path, monkeypatch
):
    cell = make_plan(config)[0]
    whole = train_cell(cell, RunContext(tmp_path / "whole", "cpu")).starts
    original = loop.Training._finish_epoch

    def stops(training, progress):
        original(training, progress)
        raise KeyboardInterrupt

    monkeypatch.setattr(loop.Training, "_finish_epoch", stops)
    with pytest.raises(KeyboardInterrupt):
        train_cell(cell, RunContext(tmp_path, "cpu"))
    monkeypatch.undo()
    assert train_cell(cell, RunContext(tmp_path, "cpu")).starts == whole
