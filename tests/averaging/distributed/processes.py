"""Runs a function in several gloo processes, with an end in any case."""

import multiprocessing
import os
import pickle
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
import torch.distributed as dist

_CONTEXT = multiprocessing.get_context("forkserver")
# Imported once, in the process that all others are forked from.
_CONTEXT.set_forkserver_preload(
    [
        "pytest",
        "switch_ema",
        "torch.distributed.checkpoint",
        "torch.distributed.fsdp",
        "torch.distributed.tensor.debug",
    ]
)


class RankError(RuntimeError):
    """One of the processes has failed; the message has its traceback."""


def run(world: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Return what ``function(*arguments)`` returns on each rank.

    Raises:
        RankError: the error of the rank that failed first.
    """
    first, results = run_to_the_end(world, function, *arguments)
    if first is not None:
        raise RankError(f"rank {first}: {results[first]}")
    return results


def run_to_the_end(
    world: int, function: Callable[..., Any], *arguments: Any, timeout: float = 600
) -> tuple[int | None, list[Any]]:
    """Return the rank that failed first, and what each returned or its traceback.

    Nobody is stopped: that all ranks end by themselves is what is asked for. A rank
    that does not within the time fails the test.
    """
    with tempfile.TemporaryDirectory() as folder:
        ranks, processes = {}, []
        for rank in range(world):
            end, other = _CONTEXT.Pipe(duplex=False)
            task = (rank, world, folder, other, function, arguments)
            processes.append(_CONTEXT.Process(target=_main, args=task, daemon=True))
            processes[-1].start()
            other.close()
            ranks[end] = rank
        try:
            return _collect(ranks, world, time.monotonic() + timeout)
        finally:
            for process in processes:
                process.kill()
                process.join()


def _collect(
    ranks: dict[Connection, int], world: int, end: float
) -> tuple[int | None, list[Any]]:
    results, first = [None] * world, None
    while ranks:
        ready = wait(list(ranks), end - time.monotonic())
        if not ready:
            raise AssertionError(f"ranks {sorted(ranks.values())} hang")
        for pipe in ready:
            rank = ranks.pop(pipe)
            try:
                failed, results[rank] = pickle.loads(pipe.recv_bytes())
            except EOFError:
                failed, results[rank] = True, "ended without a word"
            if failed and first is None:
                first = rank
    return first, results


def _main(
    rank: int,
    world: int,
    folder: str,
    pipe: Connection,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "1"}  # asked for, unused
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=30),
    )
    try:
        answer = False, function(*arguments)
    except BaseException:
        answer = True, traceback.format_exc()
    # Not pipe.send: it would hand tensors over as memory that ends with this process.
    pipe.send_bytes(pickle.dumps(answer))
