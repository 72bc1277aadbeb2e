"""The library's promises about files, ranks, states and signals, tried many times."""

import copy
import itertools
import os
import random
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from switch_ema import StateMismatch, SwitchEMA, constant
from switch_ema.averaging.averager import Averager
from switch_ema.averaging.kernels import native
from switch_ema.averaging.kernels.native import library
from switch_ema.averaging.registry import METHODS, create_averager
from tests.averaging.distributed.faults import FAULTS, try_faults, try_going_on
from tests.averaging.distributed.processes import run, run_to_the_end
from tests.averaging.helpers import nudge, quick_options
from tests.averaging.hostile import COUNTS, VALUES, unusual
from tests.averaging.interrupts import InterruptAt, same, weights
from tests.averaging.kernels.native.compilers import BROKEN_COMPILERS, broken_compiler
from tests.averaging.sequences import Difference, run_sequence
from tests.chaos.outcomes import DAMAGE, Outcome, Times, in_child

# Kernels.


@contextmanager
def _setting(**values: str) -> Iterator[None]:
    """Set environment variables, and compile quickly."""
    before, flags = dict(os.environ), library._FLAGS
    os.environ |= values
    library._FLAGS = ("-O0", *flags[1:])
    try:
        yield
    finally:
        library._FLAGS = flags
        os.environ.clear()
        os.environ |= before


def _exchange_the_file(kind: str, path: Path) -> None:
    """Replace a path by something other than a regular file."""
    path.unlink()
    if kind == "a pipe":
        os.mkfifo(path)
    elif kind == "a loop":
        path.symlink_to(path)
    elif kind == "an endless file":
        path.symlink_to("/dev/zero")


_OTHER_FILES = ("a pipe", "a loop", "an endless file", "nothing")


def damaged_libraries(count: int) -> Outcome:
    """A process starts with correct kernels, whatever happened to the cached ones."""
    rng, broken = random.Random(0), 0
    name = "kernel libraries, damaged"
    with TemporaryDirectory() as folder, _setting(XDG_CACHE_HOME=folder):
        if in_child(_use_kernels) != 0:
            return Outcome(name, 0, 0, "(skipped: no C compiler)")
        (path,) = (Path(folder) / "switch-ema").iterdir()
        good = path.read_bytes()
        for kind in itertools.islice(itertools.cycle([*DAMAGE, *_OTHER_FILES]), count):
            if kind in DAMAGE:
                path.write_bytes(DAMAGE[kind](bytearray(good), rng))
            else:
                _exchange_the_file(kind, path)
            ended_badly = in_child(_use_kernels) != 0
            is_kept = path.is_file() and path.read_bytes() == good
            broken += ended_badly or not is_kept
    return Outcome(name, count, broken)


def _use_kernels() -> None:
    found = library.library.__wrapped__(torch.float32)
    assert found is not None and found.element_size() == 4


def broken_compilers() -> Outcome:
    """A compiler that fails in any way is ignored: torch does the work."""
    broken = 0

    def work() -> None:
        library._TIMEOUT = 1
        assert library.library.__wrapped__(torch.float32) is None

    for how in BROKEN_COMPILERS:
        with TemporaryDirectory() as folder:
            compiler = broken_compiler(Path(folder) / "cc", how)
            with _setting(XDG_CACHE_HOME=f"{folder}/caches", CC=compiler):
                broken += in_child(work) != 0
            broken += any(Path(folder, "caches", "switch-ema").iterdir())
    return Outcome("broken compilers", len(BROKEN_COMPILERS), broken)


# Ranks.


def rank_faults(count: int) -> Outcome:
    """A fault of one of two ranks ends both with the same sentence."""
    count = min(count, len(FAULTS))
    ranks = run(2, try_faults, 0, count)
    silent = 0
    for (wrapper, method, fault), *sentences in zip(FAULTS, *ranks, strict=False):
        if not all(sentences):
            silent += 1
            print(f"  {wrapper}, {method}, {fault.__name__}: {sentences}")
    return Outcome("faults of one rank of two", count, silent)


def ranks_that_go_on() -> Outcome:
    """A rank that misses the end of an epoch and trains on stops with all others."""
    silent = 0
    for wrapper in ("ddp", "fsdp2"):
        _, results = run_to_the_end(2, try_going_on, wrapper)
        silent += "Rank 1 has not called" not in results[0] or "Error" not in results[1]
    return Outcome("epochs missed by a rank that trains on", 2, silent)


# States.


def hostile_states(count: int) -> Outcome:
    """A state dict that does not fit is refused, and changes nothing."""
    rng, broken, refused = random.Random(0), 0, 0
    with TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecation of such tensors
        makers = quick_options(Path(folder))
        trained = {name: _trained(name, makers[name]) for name in METHODS}
        for number in range(count):
            name = list(METHODS)[number % len(METHODS)]
            averager, good = trained[name]
            bad = _hostile(good, rng)
            try:
                averager.load_state_dict(bad)
            except (StateMismatch, ValueError):
                refused += 1
                is_whole = _equal(averager.state_dict(), good)
            except Exception as error:
                is_whole = False
                print(f"  {name}: {type(error).__name__}: {error}")
            else:
                now = averager.state_dict()
                # Without an optimizer there is nothing to wait for.
                counts = {**bad, "waiting_for": []}
                is_whole = all(now[count] == counts[count] for count in COUNTS)
            broken += not is_whole
            averager.load_state_dict(good)
    return Outcome("hostile states", count, broken, f"({refused} refused)")


def _trained(name: str, options: dict[str, Any]) -> tuple[Averager, dict[str, Any]]:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    averager = create_averager(name, model, **options)
    for _ in range(3):
        nudge(model)
        averager.update()
        averager.end_epoch()
    return averager, copy.deepcopy(averager.state_dict())


def _hostile(good: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """Change one to three entries of a state, at any depth."""
    bad = copy.deepcopy(good)
    for _ in range(rng.randrange(1, 4)):
        parent: Any = bad
        key = rng.choice(list(parent))
        while (
            isinstance(parent[key], (dict, list)) and parent[key] and rng.random() < 0.8
        ):
            parent = parent[key]
            key = rng.choice(
                list(parent) if isinstance(parent, dict) else range(len(parent))
            )
        value = parent[key]
        choices = [*VALUES, {}, [], 10**30, b"x"]
        if _is_ordinary(value):
            choices += [tensor for _, tensor in unusual(value)]
        if rng.random() < 0.1 and isinstance(parent, dict):
            del parent[key]
            if not parent:
                break
        else:
            parent[key] = rng.choice(choices)
    return bad


def _is_ordinary(value: Any) -> bool:
    """Whether it is still an ordinary tensor."""
    return (
        isinstance(value, Tensor)
        and value.is_floating_point()
        and value.layout == torch.strided
        and not value.is_meta
        and value.dim() > 0
    )


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_equal(one[k], other[k]) for k in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_equal, one, other))
    return bool(one == other)


# Everything else a user may do.


def random_sequences(count: int) -> Outcome:
    """The averagers of all methods match a naive oracle, with both kernels."""
    kinds = ("c", "torch") if native.is_available() else ("torch",)
    pairs = itertools.cycle(itertools.product(METHODS, kinds))
    different = 0
    for seed, (method, kind) in zip(range(count), pairs, strict=False):
        try:
            run_sequence(method, kind, seed)
        except Difference as difference:
            different += 1
            print(f"  {difference}")
    name = "random sequences of operations"
    return Outcome(name, count, different, f"({', '.join(kinds)})")


# Signals.


def interrupts(count: int) -> Outcome:
    """The live weights are back in the model wherever Ctrl-C hits averaged()."""
    tried = lost = 0
    # Background processes start with Ctrl-C ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    while tried < count:
        for call, is_well in _blocks():
            for moment in range(1, 100_000):
                with suppress(KeyboardInterrupt), InterruptAt(moment) as interrupt:
                    call()
                tried += 1
                lost += not is_well()
                if interrupt.left > 0 or tried == count:
                    break
            if tried == count:
                break
    return Outcome("interrupts aimed at averaged()", tried, lost)


def _blocks() -> Iterator[tuple[Callable[[], None], Callable[[], bool]]]:
    """Yield ways to use averaged(), each with a check that nothing was lost."""
    for dtype, averagers in itertools.product((None, torch.bfloat16), (1, 2)):
        model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
        several = [
            SwitchEMA(model, decay=constant(0.5), dtype=dtype) for _ in range(averagers)
        ]
        nudge(model)
        for one in several:
            one.update()
        nudge(model)
        yield _block(model, several)


def _block(
    model: nn.Module, several: list[SwitchEMA]
) -> tuple[Callable[[], None], Callable[[], bool]]:
    live, average = weights(model), several[0].averaged_state_dict()

    def call() -> None:
        with several[-1].averaged(), several[0].averaged():
            pass

    def is_well() -> bool:
        return (
            same(weights(model), live)
            and same(several[0].averaged_state_dict(), average)
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        )

    return call, is_well


def everything(times: Times) -> Iterator[Outcome]:
    """Run all attempts against the library."""
    yield damaged_libraries(times(283))
    yield broken_compilers()
    yield rank_faults(times(len(FAULTS)))
    yield ranks_that_go_on()
    yield hostile_states(times(3200))
    yield random_sequences(times(10_000))
    yield interrupts(times(100_000))
