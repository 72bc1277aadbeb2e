"""Checks that the ranks that train one model are in step.

Each rank counts and averages on its own. A rank that missed a step or the end of an
epoch, or loaded another checkpoint, would silently train with different weights. So the
ranks compare their counters, a few bytes once an epoch, through the process group's
store. This is deliberately not a collective: a missing rank can be named in the error,
whereas a collective would be matched with one of the training.
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
"""Seconds after which a waiting rank warns."""
_PAUSES = 0.001, 0.5
"""Shortest and longest polling interval of the store, in seconds."""
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}

_advice = (
    "Nothing was written. Every rank must call update(), end_epoch(), switch() and "
    "load_state_dict() equally often, with the same options and the same checkpoint."
)
_made: Counter[tuple[tuple[int, ...], str]] = Counter()
"""Number of averagers of a method made for the same ranks."""


class RankMismatch(RuntimeError):
    """The ranks are out of step: their counters, options or states differ."""


class Ranks:
    """The ranks that train a model, from the view of one averager.

    An averager is identified by its method and its construction order, which must
    therefore be the same on all ranks.

    Args:
        method: the name of the averager's method.
        model: searched for DDP and FSDP2; without them nothing is compared, even if
            there is a process group.
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
        """Whether there are other ranks to compare with."""
        return len(self.numbers) > 1

    def compare(self, place: str, record: Mapping[str, Any], *, wait: bool) -> None:
        """Raise on all ranks unless all make this call with the same record.

        Args:
            place: the name of the call, for the message.
            record: numbers and text.
            wait: whether all ranks must call and wait for each other. Otherwise a rank
                compares its record with those already posted; differences found later
                are raised at its next call.

        Raises:
            RankMismatch: a record differs, or a rank does not call within the timeout
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
        other, theirs = store.get(key).decode().split(" ", 1)  # posted first
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
        # All ranks are in this call, so none still reads the keys of the previous one.
        if wait and rank == self.numbers[0]:
            for name in ("", "/came", "/compared", "/complete"):
                store.delete_key(f"{self._name}/{self._calls - 1}{name}")

    def first_of(self, value: float) -> float:
        """Return the first rank's number; all ranks must call.

        If each rank decided by its own number, some could switch and others not.
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
                text = f"{self._missing(store)} {place} within {limit:g} s"
                store.set(f"{key}/failed", f"{text}, but other ranks have. {_advice}")
            elif waited > _PATIENCE and not has_warned:
                has_warned = True
                text = f"{self._missing(store)} {place} yet; this rank is waiting."
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
        return f"{which} not called"


def ranks_of(model: nn.Module) -> tuple[int, ...]:
    """Return the ranks that train the model together, empty for a single process."""
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
    """Whether all ranks hold all parameters, and DDP keeps them equal."""
    replicas = [m for m in model.modules() if isinstance(m, DistributedDataParallel)]
    are_whole = not any(map(is_sharded, model.parameters()))
    return are_whole and any(not replica.parameters_to_ignore for replica in replicas)


def fingerprint(tensors: Iterable[Tensor]) -> str:
    """Return a short checksum of tensors whose values must be equal on all ranks."""
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
        parts = [f"rank {rank} called {mine['place']}, rank {other} {theirs['place']}"]
    elif "refused" in theirs or "refused" in mine:
        parts = [
            f"rank {number} refuses its state ({record['refused']})"
            for number, record in ((other, theirs), (rank, mine))
            if "refused" in record
        ]
    else:
        parts = [
            f"{name} is {mine.get(name)} on rank {rank}, {theirs.get(name)} on {other}"
            for name in {**theirs, **mine}
            if mine.get(name) != theirs.get(name)
        ]
    return f"The ranks are out of step: {'; '.join(parts)}."
