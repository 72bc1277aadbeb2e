"""Switch EMA where timm has ``ModelEmaV3``, also in its training script, unchanged.

In a script of your own, use :class:`SwitchEmaV3` in place of ``ModelEmaV3``. timm's
``train.py`` needs no edit; start it through this module::

    python -m switch_ema.integrations.timm train.py --model-ema ...
"""

import argparse
import runpy
import sys
import warnings
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from switch_ema._extras import needed
from switch_ema.averaging.model.names import unwrap
from switch_ema.averaging.schedules.decay import count_warmup
from switch_ema.averaging.schedules.intervals import ScheduleLike, as_schedule
from switch_ema.averaging.schedules.progress import Position

with needed("timm", extra="timm"):
    import timm.task.task
    import timm.utils
    from timm.utils.model_ema import ModelEmaV3


class SwitchEmaV3(ModelEmaV3):
    """timm's ``ModelEmaV3`` that also switches: at the end of an epoch, live = average.

    An epoch ends when the averaged model is set to ``eval()`` after updates, which
    timm's script does once per epoch, right before it validates it. Where you do not
    validate the average, call :meth:`end_epoch`, or count in ``Steps(n)``. A switch
    leaves the average as it is, so both networks then have the same weights.

    Args:
        model: as for ``ModelEmaV3``.
        args: of ``ModelEmaV3``, by position.
        switch_every: epochs between switches, or ``Steps(n)``.
        switch_start: no switch up to here, in the unit of ``switch_every``.
        switch_stop: no switch after this.
        kwargs: of ``ModelEmaV3``, such as ``decay`` and ``use_warmup``.
    """

    def __init__(
        self,
        model: nn.Module,
        *args: Any,
        switch_every: ScheduleLike = 1,
        switch_start: float = 0,
        switch_stop: float | None = None,
        **kwargs: Any,
    ) -> None:
        self._schedule = as_schedule(switch_every, start=switch_start, stop=switch_stop)
        super().__init__(model, *args, **kwargs)
        self.steps = self.epochs = self.switches = 0
        self._epoch_start = 0
        self._length: int | None = None
        self._live = weakref.ref(model)
        self._warmup = count_warmup(self.decay)

    def get_decay(self, step: int | None = None) -> float:
        """Return timm's decay, warmed up by count unless timm warms it up itself.

        Without a ``step`` timm would drop its own warm-up; here updates are counted.
        """
        step = self.steps + 1 if step is None else step
        decay = float(super().get_decay(step))
        return decay if self.use_warmup else min(decay, self._warmup(step - 1))

    @torch.no_grad()
    def update(self, model: nn.Module, step: int | None = None) -> None:
        """Average; ``step`` is timm's count of updates, which survives a resume."""
        super().update(model, step)
        self._live = weakref.ref(model)
        if step is not None and self.steps == 0:
            self._epoch_start = step - 1  # above 0 where a training is resumed
        self.steps = self.steps + 1 if step is None else step
        if self._schedule.due_after_step(self._position()):
            self.switch()

    def end_epoch(self) -> bool:
        """Say that one epoch has ended. Returns True if the live weights changed."""
        self._length = self.steps - self._epoch_start
        if self.epochs == 0 and self._length:
            # timm saves no count of epochs; the count of updates tells it.
            self.epochs = round(self._epoch_start / self._length)
        self.epochs += 1
        self._epoch_start = self.steps
        position = self._position()
        due = self._schedule.due_after_epoch(position)
        if due:
            self.switch()
        return due

    @torch.no_grad()
    def switch(self) -> None:
        """Continue training from the average, unless it is not finite."""
        live = self._live()
        assert live is not None, "a model that is being trained exists"
        # By plain name, since the live model may be wrapped and the average not.
        average = dict(unwrap(self.module).named_parameters())
        for name, parameter in average.items():
            if not parameter.isfinite().all():
                raise FloatingPointError(
                    f"The average of {name} is not finite, so it was not written into "
                    "the model; the live weights are as they were."
                )
        for name, parameter in unwrap(live).named_parameters():
            parameter.copy_(average[name])
        for name, buffer in unwrap(live).named_buffers():
            if buffer.is_floating_point() and not self.exclude_buffers:
                buffer.copy_(unwrap(self.module).get_buffer(name))
        self.switches += 1

    def train(self, mode: bool = True) -> "SwitchEmaV3":
        """Take the first ``eval()`` after updates for the end of an epoch."""
        if not mode and self.steps > self._epoch_start:
            self.end_epoch()
        super().train(mode)
        return self

    def _position(self) -> Position:
        inside = self.steps - self._epoch_start
        return Position(self.steps, self.epochs, inside, self._length)


def install(**options: Any) -> None:
    """Let timm's training script make :class:`SwitchEmaV3` with these options."""

    class Installed(SwitchEmaV3):
        def __init__(self, model: nn.Module, *args: Any, **kwargs: Any) -> None:
            super().__init__(model, *args, **(kwargs | options))

    for module in (timm.utils, timm.utils.model_ema, timm.task.task):
        module.ModelEmaV3 = Installed  # type: ignore[attr-defined]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a training script of timm with Switch EMA in place of EMA."""
    parser = argparse.ArgumentParser(
        prog="python -m switch_ema.integrations.timm", description=main.__doc__
    )
    parser.add_argument("--switch-every", type=float, default=1, metavar="EPOCHS")
    parser.add_argument("--switch-start", type=float, default=0, metavar="EPOCHS")
    parser.add_argument("script", help="timm's train.py; its own arguments follow")
    parser.add_argument("rest", nargs=argparse.REMAINDER)
    given = parser.parse_args(arguments)
    if "--model-ema-force-cpu" in given.rest:
        warnings.warn(
            "With --model-ema-force-cpu timm does not validate the average, which is "
            "how the end of an epoch is noticed: there will be no switch.",
            stacklevel=2,
        )
    install(switch_every=given.switch_every, switch_start=given.switch_start)
    sys.argv = [given.script, *given.rest]
    runpy.run_path(given.script, run_name="__main__")


if __name__ == "__main__":
    main()
