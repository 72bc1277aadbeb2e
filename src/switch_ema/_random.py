"""Protects the state of the random number generators."""

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager

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
