"""Progress of training: an averager's counters, and the position given to schedules."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

_SPAN = re.compile(r"\s*([0-9.eE+-]+?)\s*([kMB]?)\s*(ep|it|%|samples|tokens)\s*")
_FACTORS = {"": 1.0, "k": 1e3, "M": 1e6, "B": 1e9}


def read_span(text: str) -> tuple[float, str] | None:
    """Read a number with a unit: epochs, steps, per cent, samples or tokens.

    >>> read_span("0.1ep"), read_span("5k it"), read_span("soon")
    ((0.1, 'ep'), (5000.0, 'it'), None)
    """
    match = _SPAN.fullmatch(text)
    try:
        return (float(match[1]) * _FACTORS[match[2]], match[3]) if match else None
    except ValueError:  # such as "1..2ep", which the pattern lets through
        return None


@dataclass(frozen=True)
class Position:
    """Current position in training."""

    steps: int
    """Optimizer steps so far."""
    epochs: int
    """Epochs finished so far."""
    step_in_epoch: int
    """Steps since the last epoch ended."""
    steps_per_epoch: int | None
    """Length of an epoch, if known."""


@dataclass
class Counters:
    """Counters of one training run, as stored in a state dict."""

    steps: int = 0
    """Optimizer steps so far."""
    epochs: int = 0
    """Epochs finished so far."""
    switches: int = 0
    """How often the live weights were overwritten."""
    epoch_start: int = 0
    """Step at which the current epoch began."""
    steps_per_epoch: int | None = None
    """Length of the last finished epoch, or as given by the user."""

    @property
    def position(self) -> Position:
        """The current position in training."""
        inside = self.steps - self.epoch_start
        return Position(self.steps, self.epochs, inside, self.steps_per_epoch)

    @contextmanager
    def end_epoch(self) -> Iterator[None]:
        """Count an epoch; if the block inside raises, the count is rolled back."""
        before = self.epochs, self.epoch_start, self.steps_per_epoch
        self.epochs += 1
        if self.steps > self.epoch_start:
            self.steps_per_epoch = self.steps - self.epoch_start
        self.epoch_start = self.steps
        try:
            yield
        except BaseException:
            self.epochs, self.epoch_start, self.steps_per_epoch = before
            raise

    def reset(self) -> None:
        """Reset all counters except the length of an epoch."""
        self.load(Counters(steps_per_epoch=self.steps_per_epoch).state())

    def state(self) -> dict[str, Any]:
        """Return all counters by name."""
        return {name: getattr(self, name) for name in COUNTERS}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore the counters from a state dict."""
        for name in COUNTERS:
            setattr(self, name, state[name])


COUNTERS = tuple(field.name for field in fields(Counters))
"""Names of the counters in a state dict."""
