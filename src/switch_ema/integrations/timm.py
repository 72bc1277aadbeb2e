"""Switch EMA in place of timm's ``ModelEmaV3``, also in its unmodified train.py.

In your own script, use :class:`SwitchEmaV3` instead of ``ModelEmaV3``. Run timm's
``train.py``, unmodified, through this module::

    python -m switch_ema.integrations.timm train.py --model-ema ...
"""

import argparse
import functools
import math
import runpy
import sys
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from switch_ema._checks import check_choice
from switch_ema._extras import needed
from switch_ema._files import write_atomically
from switch_ema.averaging.best import Best
from switch_ema.averaging.methods.swa import SWA
from switch_ema.averaging.model.names import unwrap
from switch_ema.averaging.schedules.decay import count_warmup
from switch_ema.averaging.schedules.intervals import ScheduleLike, as_schedule
from switch_ema.averaging.schedules.progress import Position
from switch_ema.integrations.averages import LIVE
from switch_ema.integrations.best import BestBy
from switch_ema.integrations.measures import (
    DECAY,
    DISTANCE,
    KEPT_SHARE,
    SWITCHES,
    relative_distance,
)
from switch_ema.integrations.wrapping import warn_without_state

with needed("timm", extra="timm"):
    import timm.task.task
    import timm.utils
    import timm.utils.summary
    from timm.utils.model_ema import ModelEmaV3


class SwitchEmaV3(ModelEmaV3):
    """A ``ModelEmaV3`` that also switches: it copies the average into the live model.

    The first ``eval()`` of the averaged model after updates ends an epoch; timm's
    script calls it once per epoch, right before validating the average. If you do not
    validate the average, call :meth:`end_epoch`, or switch every ``Steps(n)``. A switch
    does not change the average, so both networks then have the same weights.

    Args:
        model: as for ``ModelEmaV3``.
        args: positional arguments of ``ModelEmaV3``.
        switch_every: epochs between switches, or ``Steps(n)``.
        switch_start: switching starts after this, in the unit of ``switch_every``.
        switch_stop: no switch after this.
        best: keep the best average by a metric passed to :meth:`note` after each epoch,
            such as ``BestBy("top1", higher_is_better=True, error=0.2)``. Available as
            ``model_ema.best``; save it along with timm's checkpoint.
        log_averaging: measure the distance from the live weights to the average at the
            end of each epoch, for :meth:`describe`.
        kwargs: keyword arguments of ``ModelEmaV3``, such as ``decay``, ``use_warmup``.
    """

    def __init__(
        self,
        model: nn.Module,
        *args: Any,
        switch_every: ScheduleLike = 1,
        switch_start: float = 0,
        switch_stop: float | None = None,
        best: BestBy | None = None,
        log_averaging: bool = False,
        **kwargs: Any,
    ) -> None:
        self._schedule = as_schedule(switch_every, start=switch_start, stop=switch_stop)
        super().__init__(model, *args, **kwargs)
        self.steps = self.epochs = self.switches = 0
        self._epoch_start = 0
        self._length: int | None = None
        self._live = weakref.ref(model)
        self._warmup = count_warmup(self.decay)
        self._log_averaging = log_averaging
        self._distance = self._kept = math.nan
        # Steps since the last switch; how far a drift of 1 per step moved the average.
        self._drift, self._moved = 0, 0.0
        self._best_by = best
        self.best: Best | None = None
        """The best average, if requested."""
        if best is not None:
            # start=inf: never averages, so Best copies the module's weights unchanged.
            self.best = best.make(SWA(self.module, start=math.inf, device="cpu"))

    def get_decay(self, step: int | None = None) -> float:
        """Return timm's decay, with count warmup unless timm's own warmup is on.

        Without a ``step``, timm would skip its warmup; here updates are counted.
        """
        step = self.steps + 1 if step is None else step
        decay = float(super().get_decay(step))
        return decay if self.use_warmup else min(decay, self._warmup(step - 1))

    @torch.no_grad()
    def update(self, model: nn.Module, step: int | None = None) -> None:
        """Update the average; timm's ``step`` counts updates across resumes."""
        super().update(model, step)
        self._live = weakref.ref(model)
        if step is not None and self.steps == 0:
            self._epoch_start = step - 1  # above 0 after a resume
        self.steps = self.steps + 1 if step is None else step
        decay = self.get_decay(self.steps)
        self._drift += 1
        self._moved = decay * self._moved + (1 - decay) * self._drift
        if self._schedule.due_after_step(self._position()):
            self.switch()

    def end_epoch(self) -> bool:
        """End the epoch and switch if due; return True if the live weights changed."""
        self._length = self.steps - self._epoch_start
        if self.epochs == 0 and self._length:
            # timm saves no epoch count, so infer it from the count of updates.
            self.epochs = round(self._epoch_start / self._length)
        self.epochs += 1
        self._epoch_start = self.steps
        if self._log_averaging:
            self._distance = relative_distance(
                *(dict(unwrap(one).named_parameters()) for one in self._pair())
            )
        position = self._position()
        due = self._schedule.due_after_epoch(position)
        if due:
            self.switch()
        return due

    @torch.no_grad()
    def switch(self) -> None:
        """Continue training from the average, unless it is not finite."""
        live, _ = self._pair()
        # Match plain names: the live model may be wrapped when the average is not.
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
        self._kept = self._moved / self._drift if self._drift else math.nan
        self._drift, self._moved = 0, 0.0

    def _pair(self) -> tuple[nn.Module, nn.Module]:
        live = self._live()
        assert live is not None, "a model that is being trained exists"
        return live, self.module

    def note(self, metrics: Mapping[str, Any]) -> None:
        """Pass the average's held-out metrics after an epoch to ``best``."""
        if self.best is not None and self._best_by is not None:
            self.best.update(self._best_by.read(metrics))

    def describe(self) -> dict[str, float]:
        """Return the decay, switches, distance and kept share, for logging.

        Values not known yet are NaN, to keep the columns of a table fixed.
        """
        return {
            DECAY: self.get_decay(self.steps),
            DISTANCE: self._distance,
            SWITCHES: float(self.switches),
            KEPT_SHARE: self._kept,
        }

    def train(self, mode: bool = True) -> "SwitchEmaV3":
        """Treat the first ``eval()`` after updates as the end of an epoch."""
        if not mode and self.steps > self._epoch_start:
            self.end_epoch()
        super().train(mode)
        return self

    def _position(self) -> Position:
        inside = self.steps - self._epoch_start
        return Position(self.steps, self.epochs, inside, self._length)


class _Script:
    """Extends the summary of timm's script, and feeds its metrics to ``best``."""

    def __init__(self, evaluate: str, best: BestBy | None, log_averaging: bool) -> None:
        self._evaluate, self._best_by, self._logs = evaluate, best, log_averaging
        self._ema: SwitchEmaV3 | None = None
        self._measured: list[Mapping[str, Any]] = []
        self._states: list[dict[str, Any]] = []

    def watch(self, ema: SwitchEmaV3) -> None:
        """Wrap the script's ``validate`` to record what it measures."""
        self._ema = ema
        script = sys.modules["__main__"]
        validate = getattr(script, "validate", None)
        if validate is not None:

            @functools.wraps(validate)
            def noted(*args: Any, **kwargs: Any) -> Any:
                self._measured.append(validate(*args, **kwargs))
                return self._measured[-1]

            script.validate = noted  # type: ignore[attr-defined]

    def summary(self, original: Callable[..., None]) -> Callable[..., None]:
        """Wrap timm's ``update_summary``, which writes one line of the summary."""

        @functools.wraps(original)
        def update_summary(
            epoch: int,
            train_metrics: Mapping[str, Any],
            eval_metrics: Mapping[str, Any] | None,
            *args: Any,
            **kwargs: Any,
        ) -> None:
            measured, self._measured = self._measured, []
            if self._ema is not None and eval_metrics:
                self._note(eval_metrics)
                if self._evaluate == "both" and len(measured) > 1:
                    # The script validates the live model first.
                    live = {f"{k}{LIVE}": v for k, v in measured[0].items()}
                    eval_metrics = {**eval_metrics, **live}
            if self._ema is not None and self._logs:
                train_metrics = {**train_metrics, **self._ema.describe()}
            original(epoch, train_metrics, eval_metrics, *args, **kwargs)

        return update_summary

    def _note(self, metrics: Mapping[str, Any]) -> None:
        """Record a score and save the state of ``best``, which timm does not store."""
        if self._best_by is None or self._ema is None or self._ema.best is None:
            return
        epochs, best = self._ema.epochs, self._ema.best
        file = Path(self._best_by.folder or ".") / "scores.pt"
        if not self._states and epochs > 1:
            self._resume(file, epochs)
        if self._best_by.n is not None:  # timm reports accuracy in percent
            name = self._best_by.metric
            metrics = {**metrics, name: self._best_by.read(metrics) / 100}
        self._ema.note(metrics)
        now = {"epochs": epochs, "best": best.state_dict()}
        # Keep two: if killed before timm saves, the run resumes one epoch earlier.
        self._states = [*self._states, now][-2:]
        write_atomically(file, lambda to: torch.save(self._states, to))

    def _resume(self, file: Path, epochs: int) -> None:
        assert self._ema is not None and self._ema.best is not None
        saved = torch.load(file, weights_only=True) if file.exists() else []
        self._states = [one for one in saved if one["epochs"] < epochs]
        if self._states:
            self._ema.best.load_state_dict(self._states[-1]["best"])
        else:
            warn_without_state("the best average")

    def finish(self) -> None:
        """Write the chosen average in timm's checkpoint format."""
        best = None if self._ema is None else self._ema.best
        if best is not None and best.scores and self._best_by is not None:
            weights = {"state_dict": best.averaged_state_dict()}
            file = Path(self._best_by.folder or ".") / "average.pth.tar"
            write_atomically(file, lambda to: torch.save(weights, to))


def install(
    *,
    evaluate: str = "averaged",
    best: BestBy | None = None,
    log_averaging: bool = False,
    **options: Any,
) -> Callable[[], None]:
    """Make timm's training script use :class:`SwitchEmaV3` with these options.

    Args:
        evaluate: "both" adds the live model's metrics to the script's summary.
        best: keep the best average by a metric of that summary.
        log_averaging: add decay, distance, switches and kept share to the summary.
        options: options of :class:`SwitchEmaV3`.

    Returns:
        A function to call when the script has ended; it writes the best average.
    """
    check_choice("evaluate", evaluate, ("averaged", "both"))
    script = _Script(evaluate, best, log_averaging)

    class Installed(SwitchEmaV3):
        def __init__(self, model: nn.Module, *args: Any, **kwargs: Any) -> None:
            ours = {"best": best, "log_averaging": log_averaging}
            super().__init__(model, *args, **(kwargs | options | ours))
            script.watch(self)

    for module in (timm.utils, timm.utils.model_ema, timm.task.task):
        module.ModelEmaV3 = Installed  # type: ignore[attr-defined]
    summary = script.summary(timm.utils.summary.update_summary)
    for module in (timm.utils, timm.utils.summary):
        module.update_summary = summary  # type: ignore[attr-defined]
    return script.finish


def main(arguments: Sequence[str] | None = None) -> None:
    """Run timm's training script with Switch EMA instead of EMA."""
    parser = argparse.ArgumentParser(
        prog="python -m switch_ema.integrations.timm", description=main.__doc__
    )
    add = parser.add_argument
    add("--switch-every", type=float, default=1, metavar="EPOCHS")
    add("--switch-start", type=float, default=0, metavar="EPOCHS")
    add("--evaluate", choices=("averaged", "both"), default="averaged")
    add("--log-averaging", action="store_true")
    add("--best", metavar="METRIC", help="top1, top5 or loss of the average")
    add("--best-examples", type=int, metavar="N", help="number of held-out images")
    add("--best-error", type=float, metavar="ERROR", help="or METRIC's standard error")
    add("--best-folder", default="best", metavar="FOLDER")
    add("script", help="timm's train.py; its own arguments follow")
    add("rest", nargs=argparse.REMAINDER)
    given = parser.parse_args(arguments)
    if given.best and (given.best_examples is None) == (given.best_error is None):
        parser.error("--best needs either --best-examples or --best-error.")
    if "--model-ema-force-cpu" in given.rest:
        warnings.warn(
            "With --model-ema-force-cpu, timm does not validate the average, which "
            "would mark the end of an epoch, so there will be no switch.",
            stacklevel=2,
        )
    finish = install(
        switch_every=given.switch_every,
        switch_start=given.switch_start,
        evaluate=given.evaluate,
        log_averaging=given.log_averaging,
        best=given.best
        and BestBy(
            given.best,
            higher_is_better=given.best != "loss",
            n=given.best_examples,
            error=given.best_error,
            folder=given.best_folder,
        ),
    )
    sys.argv = [given.script, *given.rest]
    runpy.run_path(given.script, run_name="__main__")
    finish()


if __name__ == "__main__":
    main()
