"""Stacked seeds train as each would alone."""

import pytest
import torch
from torch import nn

from switch_ema import EMA, SwitchEMA, count_warmup
from switch_ema.bench.loading import create_task
from switch_ema.zoo.models import Stacked, mlp
from tests.zoo.tasks.helpers import measure, train

SEEDS = (0, 7, 12)


def switch_ema(model, optimizer):
    return SwitchEMA(model, optimizer, decay=count_warmup(0.9))


def ema(model, optimizer):
    return EMA(model, optimizer, decay=count_warmup(0.9))


@pytest.mark.parametrize("averager", [None, ema, switch_ema])
@pytest.mark.parametrize("name", ["circles", "moons"])
def test_stacked_equals_alone(name, averager):
    task = create_task(name, SEEDS)
    together, _ = train(task, 8, averager=averager)
    measured = measure(task, together)
    for index, seed in enumerate(SEEDS):
        single = create_task(name, (seed,))
        alone, _ = train(single, 8, averager=averager)
        for stacked, weight in zip(
            together.parameters(), alone.parameters(), strict=True
        ):
            torch.testing.assert_close(stacked[index], weight[0], atol=1e-5, rtol=0)
        own = measure(single, alone)
        assert measured["accuracy"][index] == own["accuracy"][0]
        assert measured["loss"][index] == pytest.approx(own["loss"][0], abs=1e-5)


def test_stacked_network_equals_its_members():
    networks = [mlp(2, 8, 3) for _ in range(4)]
    stacked = Stacked(networks)
    own, shared = torch.randn(4, 5, 2), torch.randn(5, 2)
    for index, network in enumerate(networks):
        torch.testing.assert_close(stacked(own)[index], network(own[index]))
        torch.testing.assert_close(stacked(shared)[index], network(shared))


def test_stacked_state_holds_the_weights_once():
    networks = [mlp(2, 8, 3) for _ in range(2)]
    state = Stacked(networks).state_dict()
    assert {tuple(value.shape) for value in state.values()} == {
        (2, 8, 2),
        (2, 8),
        (2, 3, 8),
        (2, 3),
    }


def test_buffers_are_stacked_like_weights():
    state = Stacked([nn.BatchNorm1d(2), nn.BatchNorm1d(2)]).state_dict()
    assert state["running_mean"].shape == state["weight"].shape == (2, 2)


def test_sizes_are_the_papers():
    task = create_task("circles", (0, 1))
    assert task.x.shape == (2, 50, 2)
    assert task.x_eval.shape == (2, 500, 2)
    assert len(task.train_loader(0)) == 5
