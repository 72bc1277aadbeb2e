"""How far training has come: what an averager counts and what schedules are asked."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from typing import Any


@dataclass(frozen=True)
class Position:
    """Where training stands."""

    steps: int
    """Optimizer steps so far."""
    epochs: int
    """Epochs finished so far."""
    step_in_epoch: int
    """Steps since the last epoch ended."""
    steps_per_epoch: int | None
    """Length of an epoch, when known."""


@dataclass
class Counters:
    """The counts of one training, as they stand in a state dict."""

    steps: int = 0
    """Optimizer steps so far."""
    epochs: int = 0
    """Epochs finished so far."""
    switches: int = 0
    """How often the live weights were written."""
    epoch_start: int = 0
    """At which step the present epoch began."""
    steps_per_epoch: int | None = None
    """Length of the latest epoch, or the one that the user gave."""

    @property
    def position(self) -> Position:
        """Where training stands."""
        inside = self.steps - self.epoch_start
        return Position(self.steps, self.epochs, inside, self.steps_per_epoch)

    @contextmanager
    def end_epoch(self) -> Iterator[None]:
        """Count an epoch, unless the block that acts at its end fails."""
        before = replace(self)
        self.epochs += 1
        if self.steps > self.epoch_start:
            self.steps_per_epoch = self.steps - self.epoch_start
        self.epoch_start = self.steps
        try:
            yield
        except BaseException:
            self.epochs, self.epoch_start = before.epochs, before.epoch_start
            self.steps_per_epoch = before.steps_per_epoch
            raise

    def reset(self) -> None:
        """Begin again; how long an epoch is stays known."""
        self.__dict__ |= asdict(Counters(steps_per_epoch=self.steps_per_epoch))

    def state(self) -> dict[str, Any]:
        """Return all counts by name."""
        return asdict(self)

    def load(self, state: Mapping[str, Any]) -> None:
        """Take the counts back."""
        for name in COUNTERS:
            setattr(self, name, state[name])


COUNTERS = tuple(field.name for field in fields(Counters))
"""The names of the counts in a state dict."""
