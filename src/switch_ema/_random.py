"""Protects and stores the states of the random number generators."""

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def random_numbers_kept() -> Iterator[None]:
    """Restore the states of Python's, NumPy's and torch's generators on exit."""
    numpy = sys.modules.get("numpy")
    python, on_cpu = random.getstate(), torch.get_rng_state()
    legacy = None if numpy is None else numpy.random.get_state()
    on_gpus = []
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        on_gpus = torch.cuda.get_rng_state_all()
    try:
        yield
    finally:
        random.setstate(python)
        torch.set_rng_state(on_cpu)
        if numpy is not None:
            numpy.random.set_state(legacy)
        if on_gpus:
            torch.cuda.set_rng_state_all(on_gpus)


def random_state(device: torch.device) -> dict[str, Any]:
    """Return the states of Python's, NumPy's and torch's generators, as plain values.

    Args:
        device: GPU whose generator is included; a CPU adds none.
    """
    numpy = sys.modules.get("numpy")
    state: dict[str, Any] = {"python": random.getstate(), "cpu": torch.get_rng_state()}
    if numpy is not None:
        name, numbers, *rest = numpy.random.get_state()
        state["numpy"] = (name, numbers.tolist(), *rest)
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def set_random_state(state: dict[str, Any], device: torch.device) -> None:
    """Set the generators to a state of :func:`random_state`."""
    random.setstate(state["python"])
    torch.set_rng_state(state["cpu"])
    numpy = sys.modules.get("numpy")
    if numpy is not None and "numpy" in state:
        numpy.random.set_state(state["numpy"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
