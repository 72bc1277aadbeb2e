"""The base of all averagers: counting steps and epochs, switching, resuming."""

import warnings
from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import nn

from switch_ema._checks import check_count
from switch_ema.averaging.counting import Counters
from switch_ema.averaging.distributed.ddp import find_replica, share_buffers
from switch_ema.averaging.model.slots import Filter
from switch_ema.averaging.resuming import Resumable
from switch_ema.averaging.schedules.intervals import Position
from switch_ema.averaging.shadow.storage import as_storage
from switch_ema.averaging.step.hooks import Optimizers, StepHook, as_optimizers

# Each rank looks at its own shard, for a switch does not communicate; so others may
# have switched. To go on would train a mixture, hence all that is left is to stop, as
# after any other error of one rank, or to load or reset on all ranks.
_SHARDED_FAILURE = (
    "This rank goes on only after load_state_dict() or reset(), which all ranks must "
    "call: the others cannot know, and may have written theirs."
)

_MISSED_STEPS = (
    "The model was trained, but no step was counted in this epoch, so nothing is done "
    "at its end: pass the optimizer that is used, or call update() after each step."
)


class Averager(Resumable, ABC):
    """Keeps averaged weights beside a model that is being trained.

    A method derives from this class and defines :meth:`_after_step`, where it acts on
    epochs :meth:`_after_epoch`, and :attr:`current_decay`.

    Args:
        model: any module, also wrapped in DDP or torch.compile.
        optimizer: one or several; ``update`` then runs after each real step (with
            several, once each has stepped; of several averagers, in the order of their
            construction). Without it, call ``update`` yourself.
        buffers: "average" averages floating-point buffers with the weights, "copy"
            takes the live ones. Buffers of other dtypes are always copied.
        dtype: of the averaged parameters; None is the model's, but at least float32.
            bfloat16 halves the memory and is rounded so that it does not stall.
        device: of the shadow; None is beside the model, "cpu" offloads it.
        include: names, globs or a predicate of (name) or (name, tensor): only these
            are averaged; the averaged model has the live values of the others.
        exclude: the opposite.
        flat: lay the model's weights and buffers into one block of memory for the
            fastest update; for models that then stay on their device and in their
            dtype.
        steps_per_epoch: places fractions of an epoch within the first epoch too;
            later epochs are counted.
    """

    active: ClassVar[bool] = False
    """Whether the method writes the live weights."""
    needs_steps: ClassVar[bool] = True
    """Whether it averages steps, of which it has to know."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizers = None,
        *,
        buffers: str = "average",
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        include: Filter = None,
        exclude: Filter = None,
        flat: bool = False,
        steps_per_epoch: int | None = None,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"model must be a torch.nn.Module, got {type(model)}.")
        if steps_per_epoch is not None:
            check_count("steps_per_epoch", steps_per_epoch)
        optimizers = as_optimizers(optimizer)
        storage = as_storage(buffers, dtype, device, flat)
        super().__init__(model, storage, include, exclude)
        self._replica = find_replica(model)
        self._failure = None
        self._mark = self._shadow.mark()
        self._counters = Counters(steps_per_epoch=steps_per_epoch)
        self._fresh_state = self._extra_state()
        self._hook = None
        if optimizers:
            self._hook = StepHook(optimizers, self._before_step, self._count_step)

    # What a method defines.

    @abstractmethod
    def _after_step(self) -> None:
        """React to an optimizer step; ``self.steps`` already counts it."""

    def _after_epoch(self) -> bool:
        """React to the end of an epoch; return whether live weights changed."""
        return False

    @property
    @abstractmethod
    def current_decay(self) -> float:
        """The weight of the old shadow in the latest averaging."""

    # Counting.

    @property
    def steps(self) -> int:
        """Optimizer steps so far."""
        return self._counters.steps

    @property
    def epochs(self) -> int:
        """Epochs finished so far."""
        return self._counters.epochs

    @property
    def switches(self) -> int:
        """How often the method has written the live weights."""
        return self._counters.switches

    @property
    def position(self) -> Position:
        """Where training stands."""
        return self._counters.position

    def update(self) -> None:
        """Say that one optimizer step has happened; a hooked optimizer does so."""
        self._refuse_while_shown("update()")
        if self._hook is not None:
            warnings.warn(
                "update() already runs after each step of the optimizer given at "
                "construction; calling it as well counts steps twice.",
                stacklevel=2,
            )
        self._count_step()

    def end_epoch(self) -> bool:
        """Say that one epoch has ended. Returns True if the live weights changed."""
        self._refuse_while_shown("end_epoch()")
        self._refuse_after_failure()
        self._check_structure()
        self._has_started = True
        has_missed_steps = (
            self.needs_steps
            and self.position.step_in_epoch == 0
            and self._mark not in (None, self._shadow.mark())
        )
        if has_missed_steps:
            warnings.warn(_MISSED_STEPS, stacklevel=2)
        with self._counters.end_epoch():
            has_written = not has_missed_steps and self._after_epoch()
        self._mark = self._shadow.mark()
        return has_written

    def _before_step(self) -> None:
        self._refuse_while_shown("optimizer.step()")
        self._refuse_after_failure()
        if self._structure.may_have_changed():
            self._check_structure()
        if not self._has_started:
            self._follow_until_first_step()
        self._has_started = True

    def _count_step(self) -> None:
        self._refuse_after_failure()
        if self._structure.may_have_changed():
            self._check_structure()
        self._has_started = True
        if self._replica is not None:
            share_buffers(self._replica)
        self._counters.steps += 1
        self._after_step()

    def _write_live(
        self, live_share: float = 0.0, reset_optimizer: bool = False
    ) -> None:
        """Continue training from the average, unless it is not finite."""
        broken = self._shadow.first_non_finite()
        if broken is not None:
            message = (
                f"The average of {broken} is not finite, so it was not written into "
                "the model; the live weights are as they were."
            )
            if self._shadow.is_sharded:
                self._failure = message = f"{message} {_SHARDED_FAILURE}"
            raise FloatingPointError(message)
        self._shadow.write_(live_share)
        self._counters.switches += 1
        if reset_optimizer and self._hook is not None:
            self._hook.forget_state()

    def _refuse_after_failure(self) -> None:
        if self._failure is not None:
            raise FloatingPointError(self._failure)

    def detach(self) -> None:
        """Remove the hooks from the optimizer; the average stays as it is."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
