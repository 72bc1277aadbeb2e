"""Whether the ranks that train one model are at the same place of the training.

Each rank counts and averages for itself. A rank that has missed a step or the end of an
epoch, or has loaded another checkpoint, would train on with other weights, silently. So
the ranks compare what they have counted, a few bytes once an epoch, through the store
that their process group was made with. It is no collective: a rank that does not come
is missed by name, where a collective would be paired with another one, of the training.
"""

import hashlib
import json
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from switch_ema.averaging._torch import default_store
from switch_ema.averaging.distributed.fsdp import is_sharded, mesh_ranks

_PATIENCE = 30
"""Seconds after which a rank that waits says so."""
_PAUSES = 0.001, 0.5
"""The shortest and the longest time between two looks at the store, in seconds."""
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}

_advice = (
    "Nothing was written. Every rank has to call update(), end_epoch(), switch() and "
    "load_state_dict() equally often, with the same options and the same checkpoint."
)
_made: Counter[tuple[tuple[int, ...], str]] = Counter()
"""How many averagers of a method were made for the same ranks."""


class RankMismatch(RuntimeError):
    """The ranks are not at the same place of the training."""


class Ranks:
    """The ranks that train a model, as one averager sees them.

    Averagers are told apart by their method and the order in which they were made,
    which therefore is the same on all ranks.

    Args:
        method: the name of the averager's method.
        model: is looked at for DDP and FSDP2; without them nothing is ever compared,
            also where there is a process group.
    """

    def __init__(self, method: str, model: nn.Module) -> None:
        self.numbers = ranks_of(model)
        index = _made[self.numbers, method]
        _made[self.numbers, method] += 1
        digest = hashlib.sha256(repr(self.numbers).encode()).hexdigest()[:16]
        self._name = f"switch-ema/{digest}/{method}/{index}"
        self._calls = self._decisions = 0
        self._unheard: str | None = None

    def __bool__(self) -> bool:
        """Whether there is anybody to compare with."""
        return len(self.numbers) > 1

    def compare(self, place: str, record: Mapping[str, Any], *, wait: bool) -> None:
        """Raise on all ranks alike unless they all come here with the same record.

        Args:
            place: what was called, for the message.
            record: numbers and text.
            wait: whether all ranks have to come, and wait for each other. Without, a
                rank compares itself with those that were here before, and hears of a
                difference that is found later at its next call.

        Raises:
            RankMismatch: a record differs, or a rank does not come within the time-out
                of the process group.
        """
        store = default_store() if self else None
        if store is None:
            return
        self._calls += 1
        key, rank = f"{self._name}/{self._calls}", torch.distributed.get_rank()
        mine = json.dumps({"place": place, **record})
        if store.add(f"{key}/came", 1) == 1:
            store.set(key, f"{rank} {mine}")
        other, theirs = store.get(key).decode().split(" ", 1)  # of who came first
        if theirs != mine:
            text = _difference(int(other), json.loads(theirs), rank, json.loads(mine))
            store.set(f"{key}/failed", f"{text} {_advice}")
        if wait:
            store.set(f"{self._name}/rank {rank}", str(self._calls))
            if store.add(f"{key}/compared", 1) == len(self.numbers):
                store.set(f"{key}/complete", "1")
            self._wait(store, key, place)
        for failed in filter(None, (self._unheard, f"{key}/failed")):
            if store.check([failed]):
                self._unheard = None
                raise RankMismatch(store.get(failed).decode())
        self._unheard = None if wait else f"{key}/failed"
        if wait and rank == self.numbers[0]:  # all have left the call before this one
            for name in ("", "/came", "/compared", "/complete"):
                store.delete_key(f"{self._name}/{self._calls - 1}{name}")

    def first_of(self, value: float) -> float:
        """Return the number that the first rank has; all ranks must call.

        Ranks that decided by numbers of their own could decide differently, and would
        then train a mixture.
        """
        store = default_store() if self else None
        if store is None:
            return value
        self._decisions += 1
        key = f"{self._name}/decision {self._decisions}"
        if torch.distributed.get_rank() == self.numbers[0]:
            store.set(key, repr(value))
        return float(store.get(key).decode())

    def _wait(self, store: Any, key: str, place: str) -> None:
        began, limit = time.monotonic(), store.timeout.total_seconds()
        pause, has_warned = _PAUSES[0], False
        while not store.check([f"{key}/complete"]) and not store.check(
            [f"{key}/failed"]
        ):
            waited = time.monotonic() - began
            if waited > limit:
                text = f"{self._missing(store)} within {limit:g} s to {place}"
                store.set(f"{key}/failed", f"{text}, where other ranks are. {_advice}")
            elif waited > _PATIENCE and not has_warned:
                has_warned = True
                text = f"{self._missing(store)} yet to {place}, where this rank waits."
                warnings.warn(text, stacklevel=4)
            time.sleep(pause)
            pause = min(1.5 * pause, _PAUSES[1])

    def _missing(self, store: Any) -> str:
        names = {rank: f"{self._name}/rank {rank}" for rank in self.numbers}
        there = {r for r, n in names.items() if store.check([n])}
        absent = [
            str(rank)
            for rank, name in names.items()
            if rank not in there or int(store.get(name)) < self._calls
        ]
        is_one = len(absent) == 1
        which = f"Rank {absent[0]} has" if is_one else f"Ranks {', '.join(absent)} have"
        return f"{which} not come"


def ranks_of(model: nn.Module) -> tuple[int, ...]:
    """Return the ranks that train the model together, none for one process alone."""
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return ()
    found: list[tuple[int, ...]] = [()]
    for module in model.modules():
        if isinstance(module, DistributedDataParallel):
            ranks = distributed.get_process_group_ranks(module.process_group)
            found.append(tuple(sorted(ranks)))
    found += [mesh_ranks(p) for p in model.parameters() if is_sharded(p)]
    return max(found, key=len)


def is_replicated(model: nn.Module) -> bool:
    """Whether all ranks have all parameters, and DDP keeps each of them equal."""
    replicas = [m for m in model.modules() if isinstance(m, DistributedDataParallel)]
    are_whole = not any(map(is_sharded, model.parameters()))
    return are_whole and any(not replica.parameters_to_ignore for replica in replicas)


def fingerprint(tensors: Iterable[Tensor]) -> str:
    """Return a text that other values would change; of values that all ranks share."""
    sums = []
    for tensor in tensors:
        flat = tensor.detach().contiguous().reshape(-1)
        flat = flat.view(_INTEGERS.get(tensor.element_size(), torch.int64))
        sums.append(int(flat.sum(dtype=torch.int64)))
    return hashlib.sha256(repr(sums).encode()).hexdigest()[:16]


def _difference(
    other: int, theirs: dict[str, Any], rank: int, mine: dict[str, Any]
) -> str:
    if theirs["place"] != mine["place"]:
        parts = [
            f"rank {rank} is at {mine['place']}, rank {other} at {theirs['place']}"
        ]
    elif "refused" in theirs or "refused" in mine:
        parts = [
            f"rank {number} refuses what it loads ({record['refused']})"
            for number, record in ((other, theirs), (rank, mine))
            if "refused" in record
        ]
    else:
        parts = [
            f"{name} is {mine.get(name)} on rank {rank}, {theirs.get(name)} on {other}"
            for name in {**theirs, **mine}
            if mine.get(name) != theirs.get(name)
        ]
    return f"The ranks are not at the same place of the training: {'; '.join(parts)}."
