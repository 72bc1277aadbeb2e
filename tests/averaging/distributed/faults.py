"""What one rank of several can do wrong, to be tried in a process group."""

import copy
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from switch_ema import EMA, Lookahead, StateMismatch, SwitchEMA, constant
from switch_ema.averaging._torch import default_store
from switch_ema.averaging.averager import Averager
from switch_ema.averaging.distributed.ranks import RankMismatch

METHODS: dict[str, Callable[..., Averager]] = {
    "switch-ema": lambda *parts, decay=0.5: SwitchEMA(*parts, decay=constant(decay)),
    "lookahead": lambda *parts, decay=0.5: Lookahead(*parts, k=2, alpha=decay),
    "ema": lambda *parts, decay=0.5: EMA(*parts, decay=constant(decay)),
}


@dataclass
class Training:
    """A model, wrapped, in the middle of its training."""

    wrapper: str
    method: str
    decay: float = 0.5

    def __post_init__(self) -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 2))
        if self.wrapper == "ddp":
            self.model: Any = DistributedDataParallel(model)
        else:
            self.model = fully_shard(model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        parts = self.model, self.optimizer
        self.averager = METHODS[self.method](*parts, decay=self.decay)
        self.train()
        self.averager.end_epoch()
        self.earlier = copy.deepcopy(self.averager.state_dict())
        self.train()

    def train(self, steps: int = 2) -> None:
        for _ in range(steps):
            self.model(torch.ones(3, 2)).square().sum().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()


def is_broken() -> bool:
    """Whether this rank is the one that goes wrong."""
    return dist.get_rank() == 1


def an_update_missed(training: Training) -> None:
    if is_broken():
        training.averager.detach()
    training.train(1)
    training.averager.end_epoch()


def an_update_twice(training: Training) -> None:
    if is_broken():
        training.averager._count_step()
    training.averager.end_epoch()


def an_end_of_an_epoch_missed(training: Training) -> None:
    if is_broken():
        dist.barrier()  # after the others have waited in vain
        training.averager.end_epoch()
    try:
        training.averager.end_epoch()
    finally:
        dist.barrier()


def an_earlier_checkpoint(training: Training) -> None:
    averager = training.averager
    averager.load_state_dict(training.earlier if is_broken() else averager.state_dict())


def a_checkpoint_of_another_run(training: Training) -> None:
    state = training.averager.state_dict()
    if is_broken():
        state["shadow"] = {name: value + 1 for name, value in state["shadow"].items()}
    training.averager.load_state_dict(state)


def a_damaged_checkpoint(training: Training) -> None:
    state = training.averager.state_dict()
    if is_broken():
        state["shadow"] = {}
    training.averager.load_state_dict(state)


def another_decay(training: Training) -> None:
    decay = 0.75 if is_broken() else 0.5
    training.averager = Training(training.wrapper, training.method, decay).averager
    training.averager.end_epoch()


def a_load_where_others_end_an_epoch(training: Training) -> None:
    if is_broken():
        training.averager.load_state_dict(training.averager.state_dict())
    training.averager.end_epoch()


def a_reset(training: Training) -> None:
    if is_broken():
        training.averager.reset()
    training.averager.end_epoch()


def a_switch_more(training: Training) -> None:
    if is_broken():
        training.averager._write_live()
    training.averager.end_epoch()


Fault = Callable[[Training], None]
_BOTH: list[Fault] = [
    an_update_missed,
    an_update_twice,
    an_end_of_an_epoch_missed,
    an_earlier_checkpoint,
    a_damaged_checkpoint,
    another_decay,
    a_load_where_others_end_an_epoch,
    a_reset,
    a_switch_more,
]
FAULTS: list[tuple[str, str, Fault]] = [
    *(("ddp", "switch-ema", f) for f in (*_BOTH, a_checkpoint_of_another_run)),
    *(("fsdp2", "switch-ema", f) for f in _BOTH),
    *(("ddp", "lookahead", f) for f in _BOTH[:4]),
    ("fsdp2", "lookahead", an_update_missed),
    *(("ddp", "ema", f) for f in (an_update_missed, a_checkpoint_of_another_run)),
    *(("fsdp2", "ema", f) for f in (an_earlier_checkpoint, a_damaged_checkpoint)),
]


def try_faults(first: int, last: int) -> list[str | None]:
    """Return the sentence with which this rank ended, for each fault; None: silent."""
    default_store().set_timeout(timedelta(seconds=1))
    return [_try(*FAULTS[number]) for number in range(first, last)]


def _try(wrapper: str, method: str, fault: Fault) -> str | None:
    training, sentence = None, None
    with suppress(StateMismatch, RankMismatch):
        try:
            training = Training(wrapper, method)
            fault(training)
        except (StateMismatch, RankMismatch) as error:
            sentence = str(error)
            raise
    dist.barrier()
    if sentence is None and training is not None and not training.averager.active:
        # Passive methods do not wait, so who came first hears of it at its next call.
        try:
            training.averager.end_epoch()
        except RankMismatch as error:
            sentence = str(error)
    dist.barrier()
    return sentence


def try_going_on(wrapper: str) -> None:
    """Miss the end of an epoch on one rank, which trains on."""
    default_store().set_timeout(timedelta(seconds=2))
    training = Training(wrapper, "switch-ema")
    if not is_broken():
        training.averager.end_epoch()
    training.train()
    training.averager.end_epoch()
