"""Shared parts of the chaos suite: numbers of attempts, and their outcomes."""

import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

Times = Callable[[int], int]
"""Return the number of attempts, scaled from the usual one."""


@dataclass(frozen=True)
class Outcome:
    """Number of attempts, and of broken promises."""

    name: str
    tried: int
    broken: int
    note: str = ""

    def __str__(self) -> str:
        return f"{self.name:55} {self.tried:6} tried, {self.broken} broken {self.note}"


def in_child(work: Callable[[], object], seconds: float | None = None) -> int:
    """Run something in a forked process, killed after some seconds if given."""
    child = os.fork()
    if child == 0:
        code = 1
        with suppress(BaseException):
            work()
            code = 0
        os._exit(code)
    if seconds is not None:
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1]


DAMAGE: dict[str, Callable[[bytearray, random.Random], bytearray]] = {}


def damage(function: Callable[[bytearray, random.Random], bytearray]) -> None:
    """Register a kind of damage."""
    DAMAGE[function.__name__.replace("_", " ")] = function


@damage
def a_page_of_zeros(content: bytearray, rng: random.Random) -> bytearray:
    page = rng.randrange(-(-len(content) // 4096)) * 4096
    content[page : page + 4096] = bytes(len(content[page : page + 4096]))
    return content


@damage
def one_bit(content: bytearray, rng: random.Random) -> bytearray:
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    return content


@damage
def cut_off(content: bytearray, rng: random.Random) -> bytearray:
    return content[: rng.randrange(len(content))]


@damage
def two_pages_exchanged(content: bytearray, rng: random.Random) -> bytearray:
    a, b = (rng.randrange(len(content) // 4096) * 4096 for _ in range(2))
    content[a : a + 4096], content[b : b + 4096] = (
        content[b : b + 4096],
        content[a : a + 4096],
    )
    return content


@damage
def something_else(content: bytearray, rng: random.Random) -> bytearray:
    return bytearray(rng.randbytes(rng.choice((0, 1, 100, 5000))))
