"""Averaging under DDP, in several processes."""

import subprocess
import sys
import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint import checkpoint_wrapper
from torch.nn.parallel import DistributedDataParallel

from switch_ema import EMA, SWA, Lookahead, SwitchEMA, constant
from tests.averaging.distributed.processes import run, run_to_the_end
from tests.averaging.helpers import (
    assert_same,
    batches,
    epoch,
    network,
    sgd,
    train_step,
)

METHODS = {
    "ema": lambda model, optimizer: EMA(model, optimizer, decay=constant(0.9)),
    "switch-ema": lambda model, optimizer: SwitchEMA(
        model, optimizer, decay=constant(0.9)
    ),
    "lookahead": lambda model, optimizer: Lookahead(model, optimizer, k=2),
    "swa": SWA,
}


def wrap(model: nn.Module, how: str) -> nn.Module:
    if how == "checkpointed":
        model.body = checkpoint_wrapper.checkpoint_wrapper(model.body)
    if how == "compiled inside":
        model = torch.compile(model, backend="eager")
    model = DistributedDataParallel(model)
    return torch.compile(model, backend="eager") if how == "compiled" else model


def states(model, averager) -> dict[str, torch.Tensor]:
    shadow = {f"shadow.{k}": v for k, v in averager.state_dict()["shadow"].items()}
    live = {f"live.{k}": v for k, v in averager.live_state_dict().items()}
    return shadow | live | averager.averaged_state_dict()


def train(model: nn.Module, method: str) -> dict[str, torch.Tensor]:
    optimizer = sgd(model)
    averager = METHODS[method](model, optimizer)
    for seed in range(2):
        epoch(model, optimizer, averager, seed)
        with averager.averaged(), torch.no_grad():
            model(next(batches(1))[0])
    for batch in batches(2, seed=7):
        train_step(model, optimizer, batch)
    return states(model, averager)


def train_wrapped(cases: list[tuple[str, str]]) -> list[dict[str, torch.Tensor]]:
    return [train(wrap(network(), how), method) for method, how in cases]


@pytest.mark.parametrize(
    ("world", "cases"),
    [
        (
            2,
            [
                ("switch-ema", "plain"),
                ("lookahead", "plain"),
                ("ema", "compiled"),
                ("switch-ema", "compiled inside"),
                ("swa", "checkpointed"),
            ],
        ),
        (4, [("switch-ema", "plain")]),
    ],
)
def test_all_ranks_equal_one_process(world, cases):
    ranks = run(world, train_wrapped, cases)
    for index, (method, _) in enumerate(cases):
        alone = train(network(), method)
        for states_of_rank in ranks:
            assert_same(states_of_rank[index], alone)


def train_on_own_batches(buffers: str) -> tuple[dict, dict, list[bool]]:
    model = DistributedDataParallel(network())
    optimizer = sgd(model)
    sema = SwitchEMA(model, optimizer, decay=constant(0.9), buffers=buffers)
    # Given the model inside, an average sees this rank's buffers and nothing else.
    own = EMA(model.module, decay=constant(0.9), buffers=buffers)
    differed = []
    for batch in batches(6, seed=dist.get_rank()):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
        means = [torch.empty(4) for _ in range(dist.get_world_size())]
        dist.all_gather(means, model.module.norm.running_mean)
        differed.append(not torch.equal(means[0], means[1]))
        own_view = dict(model.module.named_buffers())
        expected = {name: tensor.clone() for name, tensor in own_view.items()}
        optimizer.step()
        if dist.get_rank() == 0:
            assert_same(dict(model.module.named_buffers()), expected)
        own.update()
    return states(model, sema), own.averaged_state_dict(), differed


def train_apart() -> torch.Tensor:
    model = DistributedDataParallel(network(), broadcast_buffers=False)
    optimizer = sgd(model)
    ema = EMA(model, optimizer)
    for batch in batches(2, seed=dist.get_rank()):
        train_step(model, optimizer, batch)
    return ema.averaged_state_dict()["norm.running_mean"]


def train_with_buffers() -> tuple:
    policies = ["average", "copy"]
    return [train_on_own_batches(policy) for policy in policies], train_apart()


def test_buffers_that_differ_are_those_of_rank_0_unless_ddp_leaves_them_apart():
    (first, apart), (second, other) = run(2, train_with_buffers)
    for (state, reference, differed), (state_of_1, _, _) in zip(
        first, second, strict=True
    ):
        assert all(differed)
        assert_same(state_of_1, state)
        assert_same({name: state[name] for name in reference}, reference)
    assert not torch.equal(apart, other)


def train_on_uneven_data(method) -> tuple[int, list[str], dict, dict]:
    """Rank 0 has 3 batches in each epoch, rank 1 has 5."""
    model = DistributedDataParallel(network())
    optimizer = sgd(model)
    averager = method(model, optimizer, decay=constant(0.8))
    reference, told = EMA(model.module, decay=constant(0.8)), []
    for seed in range(2):
        with model.join():
            for batch in batches(3 + 2 * dist.get_rank(), seed):
                train_step(model, optimizer, batch)
                reference.update()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            averager.end_epoch()
        told += [str(w.message) for w in caught if "join()" in str(w.message)]
    average, expected = averager.averaged_state_dict(), reference.averaged_state_dict()
    return averager.steps, told, average, expected


def test_a_passive_average_goes_on_with_uneven_data_and_tells_whose_is_whole():
    ranks = run(2, train_on_uneven_data, EMA)
    assert [steps for steps, *_ in ranks] == [6, 10]
    for _, told, average, expected in ranks:
        assert len(told) == 1
        assert "a rank with the most batches" in told[0]
        assert_same(average, expected)


def test_a_switch_after_uneven_data_is_refused_on_all_ranks():
    _, results = run_to_the_end(2, train_on_uneven_data, SwitchEMA)
    assert all("RankMismatch" in result for result in results), results


def fail_on_rank_1() -> None:
    model = DistributedDataParallel(network())
    optimizer = sgd(model)
    sema = SwitchEMA(model, optimizer)
    epoch(model, optimizer, sema, 0)
    if dist.get_rank() == 1:
        raise OSError("the disk of rank 1 is full")
    epoch(model, optimizer, sema, 1)


def test_a_rank_that_fails_ends_all():
    first, results = run_to_the_end(3, fail_on_rank_1)
    assert first == 1
    assert "the disk of rank 1 is full" in results[1]
    assert all("Error" in result for result in results), results


FAILING = """
import torch, torch.distributed as dist
from torch import nn
from switch_ema import SwitchEMA
dist.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(nn.Linear(2, 2))
sema = SwitchEMA(model, torch.optim.SGD(model.parameters(), lr=0.1))
if dist.get_rank() == 1:
    raise OSError("the disk of rank 1 is full")
model(torch.ones(1, 2)).sum().backward()
dist.barrier()
"""


def test_torchrun_ends_all_ranks_with_the_error(tmp_path):
    script = tmp_path / "failing.py"
    script.write_text(FAILING)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*launcher, "--nproc-per-node=2", str(script)],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode != 0
    assert "the disk of rank 1 is full" in done.stderr


def recalibrated() -> list[dict[str, torch.Tensor]]:
    """Each rank recalibrates with its own part of five batches, then with all."""
    rank, found = dist.get_rank(), []
    model = DistributedDataParallel(network())
    ema = EMA(model, decay=constant(0.9))
    all_batches = list(batches(5))
    for own in (all_batches[:5] if rank else [], all_batches[3 * rank :][: 3 - rank]):
        ema.recalibrate(own)
        found.append(ema.averaged_state_dict())
    with pytest.raises(ValueError, match="at least one batch"):
        ema.recalibrate([])
    assert model.broadcast_buffers
    assert_same(ema.averaged_state_dict(), found[-1])
    return found


def test_all_ranks_recalibrate_to_the_mean_over_their_batches():
    alone = EMA(network())
    alone.recalibrate(batches(5))
    expected = alone.averaged_state_dict()
    for found in zip(*run(2, recalibrated), strict=True):
        assert_same(found[0], found[1])
        torch.testing.assert_close(found[0], expected)
