"""When to act: every T epochs, every n steps, a fraction of an epoch, or a rule.

The number of steps per epoch need not be known: ``end_epoch`` counts whole epochs, and
fractions use the length of the last finished epoch.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Union

from switch_ema._checks import check_count, check_positive
from switch_ema.averaging.schedules.progress import Position, read_span


class Schedule(ABC):
    """A rule that is evaluated after every step and after every epoch."""

    @property
    def acts_on_steps(self) -> bool:
        """Whether :meth:`due_after_step` can ever be true."""
        return True

    def due_after_step(self, position: Position) -> bool:
        """Whether to act after this optimizer step."""
        return False

    def due_after_epoch(self, position: Position) -> bool:
        """Whether to act at the end of this epoch."""
        return False

    @abstractmethod
    def progress(self, position: Position) -> float:
        """Return the progress of training, in the unit of start and stop."""

    def steps_between(self, steps_per_epoch: int | None) -> float | None:
        """Return the number of steps between two actions; None if not known yet.

        A rule about epochs counts as acting after each one.
        """
        return steps_per_epoch


@dataclass(frozen=True)
class Steps(Schedule):
    """Every ``n`` optimizer steps.

    >>> Steps(100).due_after_step(Position(300, 2, 40, 130))
    True
    """

    n: int
    """Steps between two actions, at least 1."""

    def __post_init__(self) -> None:
        check_count("Steps", self.n)

    def due_after_step(self, position: Position) -> bool:
        """Whether the count of steps is a multiple of ``n``."""
        return position.steps % self.n == 0

    def progress(self, position: Position) -> float:
        """Return the number of steps so far."""
        return position.steps

    def steps_between(self, steps_per_epoch: int | None) -> float | None:
        """Return ``n``."""
        return self.n


@dataclass(frozen=True)
class Epochs(Schedule):
    """Every ``interval`` epochs, which may be a fraction such as 0.5.

    Actions inside an epoch are placed by the length of the last finished epoch, so the
    first epoch has none unless the averager was given ``steps_per_epoch``.
    """

    interval: float
    """Epochs between two actions, above 0."""

    def __post_init__(self) -> None:
        check_positive("the interval in epochs", self.interval)

    @property
    def acts_on_steps(self) -> bool:
        """Whether some actions are inside an epoch."""
        return not float(self.interval).is_integer()

    @property
    def _exact(self) -> Fraction:
        return Fraction(self.interval).limit_denominator(1_000_000)

    def due_after_step(self, position: Position) -> bool:
        """Whether this step crossed a multiple of the interval inside an epoch."""
        length, step = position.steps_per_epoch, position.step_in_epoch
        if not self.acts_on_steps or not length or step >= length:
            return False
        now, before = (
            math.floor((position.epochs + Fraction(at, length)) / self._exact)
            for at in (step, step - 1)
        )
        return now > before

    def due_after_epoch(self, position: Position) -> bool:
        """Whether the last step of the epoch reached a multiple of the interval."""
        if not self.acts_on_steps:
            return position.epochs % self.interval == 0
        length = position.steps_per_epoch
        if not length:
            return position.epochs % self._exact == 0
        before = position.epochs - Fraction(1, length)
        return position.epochs // self._exact > before // self._exact

    def progress(self, position: Position) -> float:
        """Return the epochs so far, including the fraction if known."""
        if not position.steps_per_epoch:
            return position.epochs
        inside = min(position.step_in_epoch / position.steps_per_epoch, 1)
        return position.epochs + inside

    def steps_between(self, steps_per_epoch: int | None) -> float | None:
        """Return the number of steps in ``interval`` epochs."""
        return None if steps_per_epoch is None else self.interval * steps_per_epoch


@dataclass(frozen=True)
class When(Schedule):
    """At the end of each epoch for which ``rule(epochs_finished)`` is true."""

    rule: Callable[[int], bool]

    @property
    def acts_on_steps(self) -> bool:
        """False: the rule is evaluated only at the end of an epoch."""
        return False

    def due_after_epoch(self, position: Position) -> bool:
        """Call the rule."""
        return bool(self.rule(position.epochs))

    def progress(self, position: Position) -> float:
        """Return the number of finished epochs."""
        return position.epochs


@dataclass(frozen=True)
class Window(Schedule):
    """Another schedule, restricted to ``start < progress <= stop``."""

    inner: Schedule
    start: float
    stop: float | None

    @property
    def acts_on_steps(self) -> bool:
        """Whether the inner schedule acts on steps."""
        return self.inner.acts_on_steps

    def due_after_step(self, position: Position) -> bool:
        """Whether the inner schedule acts, and the window is open."""
        return self.inner.due_after_step(position) and self._open(position)

    def due_after_epoch(self, position: Position) -> bool:
        """Whether the inner schedule acts, and the window is open."""
        return self.inner.due_after_epoch(position) and self._open(position)

    def progress(self, position: Position) -> float:
        """Return the inner schedule's progress."""
        return self.inner.progress(position)

    def steps_between(self, steps_per_epoch: int | None) -> float | None:
        """Return the inner schedule's number of steps."""
        return self.inner.steps_between(steps_per_epoch)

    def _open(self, position: Position) -> bool:
        progress = self.progress(position)
        return self.start < progress and (self.stop is None or progress <= self.stop)


ScheduleLike = Union[float, str, Schedule, Callable[[int], bool]]


def as_schedule(
    every: ScheduleLike,
    *,
    name: str = "switch_every",
    start: float = 0,
    stop: float | None = None,
) -> Schedule:
    """Convert a number of epochs, text, a schedule or a rule to a schedule.

    >>> as_schedule("100it"), as_schedule("0.5ep"), as_schedule(2)
    (Steps(n=100), Epochs(interval=0.5), Epochs(interval=2))
    """
    if isinstance(every, Schedule):
        schedule = every
    elif isinstance(every, str):
        schedule = _read(every, name)
    elif callable(every):
        schedule = When(every)
    else:
        check_positive(name, every)
        schedule = Epochs(every)
    stem = name.removesuffix("every")
    for end, value in (("start", start), ("stop", stop)):
        if isinstance(value, str):
            raise ValueError(
                f"{stem}{end} must be a number, in the unit of {name}, got {value!r}."
            )
    if not start >= 0:
        raise ValueError(f"{stem}start must be at least 0, got {start!r}.")
    if stop is not None and not stop > start:
        raise ValueError(
            f"{stem}stop must be None or above {stem}start={start!r}, got {stop!r}."
        )
    return Window(schedule, start, stop) if start > 0 or stop is not None else schedule


def _read(text: str, name: str) -> Schedule:
    number, unit = read_span(text) or (0.0, "")
    if unit == "ep" and number > 0:
        return Epochs(int(number) if number.is_integer() else number)
    if unit == "it" and number >= 1 and number.is_integer():
        return Steps(int(number))
    raise ValueError(
        f"{name} must be a number of epochs, or text such as '100it' (steps) or '2ep' "
        f"(epochs), got {text!r}."
    )
