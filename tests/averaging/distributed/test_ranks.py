"""Ranks that are no longer at the same place: all of them end with one sentence."""

import re

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from switch_ema import EMA, Steps, SwitchEMA, constant
from switch_ema.averaging import averager as module
from switch_ema.averaging.distributed import ranks
from switch_ema.averaging.distributed.ranks import RankMismatch
from tests.averaging.distributed.faults import FAULTS, Training, is_broken, try_faults
from tests.averaging.distributed.processes import run
from tests.averaging.helpers import nudge


def test_no_fault_of_a_rank_is_silent():
    first, second = run(2, try_faults, 0, len(FAULTS))
    for (wrapper, method, fault), one, two in zip(FAULTS, first, second, strict=True):
        name = f"{wrapper}, {method}, {fault.__name__}"
        assert one and two, (name, one, two)
        if fault.__name__ == "a_damaged_checkpoint":
            assert "rank 1 refuses" in one and two.startswith("The state dict"), name
        else:
            assert one == two and "\n" not in one, name
    missed = first[2]
    assert missed.startswith("Rank 1 has not called end_epoch() within 1 s, but other")
    counts = "steps is (4 on rank 1, 5 on 0|5 on rank 0, 4 on 1)"
    assert re.search(counts, first[0]), first[0]


def refuse_and_go_on() -> None:
    training = Training("ddp", "switch-ema")
    averager = training.averager
    live = averager.live_state_dict()
    if is_broken():
        averager.reset()
    with pytest.raises(RankMismatch):
        averager.end_epoch()
    for name, value in averager.live_state_dict().items():
        assert torch.equal(value, live[name])
    averager.load_state_dict(training.earlier)
    training.train()
    assert averager.end_epoch()
    averager.switch()
    assert averager.switches == 3


def average_apart() -> None:
    """Models of their own, and averages on one rank, in a process group."""
    own = nn.Linear(2 + dist.get_rank(), 1)
    sema = SwitchEMA(own, decay=constant(0.5))
    for _ in range(2 + dist.get_rank()):
        nudge(own)
        sema.update()
        sema.end_epoch()
    sema.load_state_dict(sema.state_dict())
    shared = DistributedDataParallel(nn.Linear(2, 1))
    if dist.get_rank() == 0:
        ema = EMA(shared)
        nudge(shared)
        ema.update()
        ema.end_epoch()
        ema.load_state_dict(ema.state_dict())
        assert ema.epochs == 1


def switch_by_steps() -> None:
    """Where nobody counts epochs, ranks compare themselves from time to time."""
    module._STEPS_BETWEEN_COMPARISONS = 4
    sema = SwitchEMA(
        DistributedDataParallel(nn.Linear(2, 1)),
        decay=constant(0.75 if is_broken() else 0.5),
        switch_every=Steps(2),
    )
    for _ in range(3):
        sema.update()
    with pytest.raises(RankMismatch, match=r"decay is .* on rank"):
        sema.update()


def all_in_one() -> None:
    refuse_and_go_on()
    average_apart()
    switch_by_steps()


def test_what_is_right_or_made_right_goes_on():
    run(2, all_in_one)


def test_one_process_asks_no_store(monkeypatch):
    monkeypatch.setattr(ranks, "default_store", None)
    model = nn.Linear(2, 1)
    sema = SwitchEMA(model, decay=constant(0.5))
    nudge(model)
    sema.update()
    assert sema.end_epoch()
    sema.load_state_dict(sema.state_dict())
