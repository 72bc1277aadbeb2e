"""Weight averaging in MMEngine: hooks for the runner, also from a config."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import torch

from switch_ema._checks import check_choice, check_count
from switch_ema._extras import needed
from switch_ema._random import random_numbers_kept
from switch_ema.averaging.averager import Averager
from switch_ema.averaging.best import Best
from switch_ema.averaging.model.names import load_weights
from switch_ema.averaging.model.slots import Filter
from switch_ema.averaging.registry import MethodOptions
from switch_ema.averaging.schedules.decay import (
    DecaySchedule,
    constant,
    constant_warmup,
    count_warmup,
    exponential_warmup,
    linear_warmup,
)
from switch_ema.averaging.schedules.intervals import Steps
from switch_ema.averaging.schedules.spelling import DecayLike
from switch_ema.averaging.step.hooks import OptimizerState
from switch_ema.integrations.averages import (
    Averages,
    AveragingSettings,
    CallbackOptions,
    Decays,
    Evaluate,
    HasAverages,
    takes_callback_options,
)
from switch_ema.integrations.best import BestBy
from switch_ema.integrations.wrapping import (
    check_alone,
    run_on_average,
    warn_without_state,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

with needed("mmengine", extra="mmengine"):
    from mmengine.hooks import Hook
    from mmengine.optim import OptimWrapperDict
    from mmengine.registry import HOOKS
    from mmengine.runner import EpochBasedTrainLoop, Runner

Warmup = Literal["count", "linear", "exp", "constant"]

_KEY = "switch_ema"
_WARMUPS = {
    "linear": linear_warmup,
    "exp": exponential_warmup,
    "constant": constant_warmup,
}


@HOOKS.register_module()
class AveragerHook(HasAverages, Hook):  # type: ignore[misc]
    """Average the weights of the runner's model, by any method.

    Real optimizer steps count. Validation and test run on the averaged weights, and
    the live ones are put back afterwards, also after an exception. A checkpoint has
    the averaged weights under ``state_dict``, as with MMEngine's ``EMAHook``, and the
    live ones beside them, from which ``resume`` goes on.

    As in the callbacks of all trainers, ``options`` may have, beside those of the
    method:

    - ``best``: keep the best average by a validation metric, as ``BestBy`` or as
      ``dict(metric="accuracy/top1", higher_is_better=True, error=0.2)``; after
      training, validation and test run on it where the last average is clearly worse,
      and ``hook.best`` has it. Checkpoints have the latest average.
    - ``evaluate``: which weights validations in training measure: "averaged", "live",
      or "both", where the metrics of the live weights stand beside the usual ones as
      ``accuracy/top1_live``.
    - ``decays``: decays of further, passive averages of the same training, such as
      ``[0.99, 0.9999]``; validations in training measure each of them, as
      ``accuracy/top1_ema_0.99``, and ``hook.further`` has them.
    - ``log_averaging``: log decay, number of switches, the share of the progress that a
      switch kept and the distance of the live weights to the average at the end of each
      epoch, through the runner's visualizer.

    Args:
        method: a name of ``switch_ema.METHODS``.
        options: those above, and those of the method, such as ``decay``.

    Example::

        custom_hooks = [dict(type="AveragerHook", method="ema", decay=0.999)]
    """

    priority = "NORMAL"  # before CheckpointHook, which then sees an epoch with its end

    @takes_callback_options
    def __init__(
        self,
        method: str = "switch-ema",
        **options: "Unpack[CallbackOptions]",
    ) -> None:
        self._settings = AveragingSettings.of(method, options)
        self._saved: dict[str, Any] | None = None
        self._is_scored = False

    def before_run(self, runner: Runner) -> None:
        """Let the loops for validation and test run on the average."""
        check_alone(self, runner.hooks, AveragerHook)
        around = functools.partial(self._measure_all, runner)
        for loop, of_loop in ((runner._val_loop, around), (runner._test_loop, None)):
            # A loop that is not in use is still a part of the configuration.
            if hasattr(loop, "run"):
                run_on_average(loop, "run", self._evaluated, of_loop)

    def _evaluated(self) -> Averager | Best | None:
        return None if self._averages is None else self._averages.evaluated()

    # Training.

    def before_train(self, runner: Runner) -> None:
        """Make the averager, and on resuming load its state and the live weights."""
        if self._averages is not None:
            self._averages.detach()
        wrapper = runner.optim_wrapper
        several = isinstance(wrapper, OptimWrapperDict)
        wrappers = wrapper.optim_wrappers.values() if several else [wrapper]
        self._averages = Averages(
            self._settings, runner.model, [one.optimizer for one in wrappers]
        )
        if self._saved is not None and runner.iter > 0:
            load_weights(runner.model, self._saved["live"])
            self._averages.load_state_dict(self._saved["averager"])
            if not self._saved.get("is_scored", True):
                self._score_resumed(runner)
        elif runner.iter > 0:
            warn_without_state()
        self._saved = None

    def after_train_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: Any = None,
        outputs: dict[str, Any] | None = None,
    ) -> None:
        """Note that there is an average that no validation has seen."""
        self._is_scored = False

    def after_train_epoch(self, runner: Runner) -> None:
        """End the epoch."""
        assert self._averages is not None
        if values := self._averages.end_epoch():
            runner.visualizer.add_scalars(values, step=runner.epoch + 1)

    def after_train(self, runner: Runner) -> None:
        """From now on, show the best average."""
        assert self._averages is not None
        self._averages.finish()

    # Validation.

    def _measure_all(
        self, runner: Runner, original: Callable[[], Any], shown: Callable[[], Any]
    ) -> Any:
        """Measure further weights, too, and let all hooks find them with the others."""
        more: dict[str, Any] = {}
        if self._averages is not None:
            measure = functools.partial(_without_hooks, runner, original)
            more = self._averages.measure_more(measure)
        call_hook = runner.call_hook

        def call(name: str, **kwargs: Any) -> None:
            if name == "after_val_epoch" and kwargs.get("metrics") is not None:
                kwargs["metrics"].update(more)
            call_hook(name, **kwargs)

        with _calling(runner, call):
            return shown()

    def after_val_epoch(
        self, runner: Runner, metrics: dict[str, float] | None = None
    ) -> None:
        """Note the score of a validation in training."""
        if self._averages is not None:
            self._averages.note(metrics or {})
            self._is_scored = True

    def _score_resumed(self, runner: Runner) -> None:
        """Make up for the validation that comes after a checkpoint of its epoch."""
        assert self._averages is not None
        is_whole = self._averages.averager.position.step_in_epoch == 0
        if self.best is None or not _validates_now(runner, is_whole):
            return
        run = runner.val_loop.run.original
        with random_numbers_kept(), self._averages.evaluated_view():
            self._averages.note(_without_hooks(runner, run))

    # Checkpoints.

    def before_save_checkpoint(
        self, runner: Runner, checkpoint: dict[str, Any]
    ) -> None:
        """Store both sets of weights and the averager."""
        if self._averages is not None:
            averager = self._averages.averager
            checkpoint["state_dict"] = _on_cpu(averager.averaged_state_dict())
            checkpoint[_KEY] = {
                "live": _on_cpu(averager.live_state_dict()),
                "averager": self._averages.state_dict(),
                "is_scored": self._is_scored,
            }

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict[str, Any]) -> None:
        """Keep what resuming needs; until then, the averaged weights are loaded."""
        if runner._train_loop is not None:
            self._saved = checkpoint.get(_KEY)
        if self._averages is not None:
            # Weights loaded after a training are shown as they are.
            self._averages.detach()
            self._averages = None


@HOOKS.register_module()
class SwitchEMAHook(AveragerHook):
    """Switch EMA with the argument names of the hook published with the paper.

    That hook switches in all epochs but the due ones, hence never at its interval of 1.
    This one switches at the end of every ``switch_interval``-th epoch or step.

    Args:
        momentum: the decay, which is the weight of the OLD shadow, in [0, 1).
        resume_from: None, as in the published configs; it is the runner that resumes.
        warmup: "count", as everywhere here, or one of the published hook's: "linear",
            "exp", "constant", or None for a decay that is constant from the start.
        warmup_iters: its length in steps.
        warmup_ratio: the decay starts at this share of ``momentum``.
        switch_params: False averages without switching.
        switch_by_iter: count the following three in steps, not in epochs.
        switch_start: no switch up to here.
        switch_end: no switch after this.
        switch_interval: epochs or steps from switch to switch.
        full_params_ema: average all float buffers too; if not they are copied.
        update_interval: average at every k-th step only, with ``momentum``.
        live_share: the share of the live weights that a switch keeps.
        optimizer_state: "keep" or "reset" the optimizer's moments at a switch.
        dtype: the dtype of the average, as of :class:`switch_ema.Averager`.
        device: the device of the average.
        include: average only these tensors.
        exclude: do not average these tensors.
        flat: move the model into one block of memory, for the fastest update.
        steps_per_epoch: the length of an epoch, if it must be known during the first.
        best: as for :class:`AveragerHook`, like the following.
        evaluate: which weights validations in training measure.
        decays: decays of further, passive averages.
        log_averaging: log decay, switches and distance at the end of each epoch.
    """

    def __init__(
        self,
        momentum: float = 0.9999,
        *,
        resume_from: str | None = None,
        warmup: Warmup | None = "count",
        warmup_iters: int = 0,
        warmup_ratio: float = 0.9,
        switch_params: bool = True,
        switch_by_iter: bool = False,
        switch_start: int = 0,
        switch_end: int | None = None,
        switch_interval: int = 1,
        full_params_ema: bool = False,
        update_interval: int = 1,
        live_share: float = 0.0,
        optimizer_state: OptimizerState = "keep",
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        include: Filter = None,
        exclude: Filter = None,
        flat: bool = False,
        steps_per_epoch: int | None = None,
        best: BestBy | None = None,
        evaluate: Evaluate = "averaged",
        decays: Decays | None = None,
        log_averaging: bool = False,
    ) -> None:
        if resume_from is not None:
            raise ValueError(
                f"resume_from must be None, got {resume_from!r}; resume with "
                "load_from=... and resume=True of the runner."
            )
        check_count("switch_interval", switch_interval)
        check_count("update_interval", update_interval)
        if warmup is None:
            decay = constant(momentum)
        elif warmup == "count":
            decay = count_warmup(momentum)
        else:
            check_choice("warmup", warmup, ("count", *_WARMUPS))
            schedule = _WARMUPS[warmup]
            decay = schedule(momentum, steps=warmup_iters, ratio=warmup_ratio)
        options: MethodOptions = {
            "decay": _per_step(decay, update_interval),
            "update_every": update_interval,
            "buffers": "average" if full_params_ema else "copy",
            "dtype": dtype,
            "device": device,
            "include": include,
            "exclude": exclude,
            "flat": flat,
            "steps_per_epoch": steps_per_epoch,
        }
        if switch_params:
            every = Steps(switch_interval) if switch_by_iter else switch_interval
            options["switch_every"], options["switch_start"] = every, switch_start
            options["switch_stop"], options["live_share"] = switch_end, live_share
            options["optimizer_state"] = optimizer_state
        super().__init__(
            "switch-ema" if switch_params else "ema",
            best=best,
            evaluate=evaluate,
            decays=decays,
            log_averaging=log_averaging,
            **options,
        )


@contextmanager
def _calling(runner: Runner, call_hook: Callable[..., None]) -> Iterator[None]:
    """Let another function take the place of ``runner.call_hook``."""
    runner.call_hook = call_hook
    try:
        yield
    finally:
        del runner.call_hook


def _without_hooks(runner: Runner, run: Callable[[], Any]) -> Any:
    """Run a loop of which no hook hears; return its metrics."""
    with _calling(runner, lambda *args, **kwargs: None):
        return run()


def _validates_now(runner: Runner, is_whole_epoch: bool) -> bool:
    """Whether the training loop validates where it stands, as its own run() does."""
    loop = runner.train_loop
    done, last = loop.iter, loop.max_iters
    if isinstance(loop, EpochBasedTrainLoop):
        done, last = loop.epoch, loop.max_epochs
        if not is_whole_epoch:
            return False
    due = done % loop.val_interval == 0 or done == last
    return runner.val_loop is not None and done >= loop.val_begin and due


def _per_step(decay: DecaySchedule, interval: int) -> DecayLike:
    """Undo the power of ``update_every``, since the hook's momentum has none."""
    if interval == 1:
        return decay
    return lambda step: decay(step) ** (1 / interval)


def _on_cpu(weights: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value.cpu() if hasattr(value, "cpu") else value
        for name, value in weights.items()
    }
