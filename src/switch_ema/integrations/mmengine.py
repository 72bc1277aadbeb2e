"""Weight averaging in MMEngine: runner hooks, also usable from a config."""

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
    run_inside,
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
    """Average the weights of the runner's model with any method.

    Counts real optimizer steps. Validation and test run on the averaged weights; the
    live weights are restored afterwards, even after an exception. A checkpoint stores
    the averaged weights under ``state_dict``, as with MMEngine's ``EMAHook``, and also
    the live weights, from which ``resume`` continues.

    Besides the method's options, ``options`` takes those that all trainers share:

    - ``best``: keep the best average by a validation metric, as ``BestBy`` or as
      ``dict(metric="accuracy/top1", higher_is_better=True, error=0.2)``. After
      training, validation and test run on it if the last average is clearly worse.
      Available as ``hook.best``. Checkpoints store the latest average.
    - ``evaluate``: which weights validation during training measures: "averaged",
      "live", or "both", which adds the metrics of the live weights as
      ``accuracy/top1_live``.
    - ``decays``: decays of further averages, such as ``[0.99, 0.9999]``, which do not
      affect the training. Validation during training measures each, as
      ``accuracy/top1_ema_0.99``. Available as ``hook.further``.
    - ``log_averaging``: log the decay, the number of switches, the share of progress
      that a switch kept, and the distance from the live weights to the average at the
      end of each epoch, through the runner's visualizer.

    Args:
        method: a key of ``switch_ema.METHODS``.
        options: those above, and the method's, such as ``decay``.

    Example::

        custom_hooks = [dict(type="AveragerHook", method="ema", decay=0.999)]
    """

    priority = "NORMAL"  # before CheckpointHook: the switch must come first

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
        """Make the validation and test loops run on the average."""
        check_alone(self, runner.hooks, AveragerHook)
        if hasattr(runner._train_loop, "run"):
            run_inside(runner._train_loop, "run", self._training)
        around = functools.partial(self._measure_all, runner)
        for loop, of_loop in ((runner._val_loop, around), (runner._test_loop, None)):
            # A loop that was not built yet is still a config dict.
            if hasattr(loop, "run"):
                run_on_average(loop, "run", self._evaluated, of_loop)

    def _evaluated(self) -> Averager | Best | None:
        return None if self._averages is None else self._averages.evaluated()

    # Training.

    def before_train(self, runner: Runner) -> None:
        """Create the averager; when resuming, load its state and the live weights."""
        if self._averages is not None:
            self._averages.detach()
        wrapper = runner.optim_wrapper
        several = isinstance(wrapper, OptimWrapperDict)
        wrappers = wrapper.optim_wrappers.values() if several else [wrapper]
        optimizers = [one.optimizer for one in wrappers]
        length = _length(runner, *wrappers)
        self._averages = Averages(self._settings, runner.model, optimizers, length)
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
        """Mark the current average as not yet validated."""
        self._is_scored = False

    def after_train_epoch(self, runner: Runner) -> None:
        """End the epoch."""
        assert self._averages is not None
        if values := self._averages.end_epoch():
            runner.visualizer.add_scalars(values, step=runner.epoch + 1)

    def after_train(self, runner: Runner) -> None:
        """Use the best average from now on."""
        assert self._averages is not None
        self._averages.finish()

    # Validation.

    def _measure_all(
        self, runner: Runner, original: Callable[[], Any], shown: Callable[[], Any]
    ) -> Any:
        """Also measure further weights, and pass their metrics to all hooks."""
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
        """Record the score of a validation during training."""
        if self._averages is not None:
            self._averages.note(metrics or {})
            self._is_scored = True

    def _score_resumed(self, runner: Runner) -> None:
        """Run the validation that was due right after the resumed checkpoint."""
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
        """Keep the state for resuming; until then, the model holds the average."""
        if runner._train_loop is not None:
            self._saved = checkpoint.get(_KEY)
        if self._averages is not None:
            # Weights loaded after training are used unchanged.
            self._averages.detach()
            self._averages = None


@HOOKS.register_module()
class SwitchEMAHook(AveragerHook):
    """Switch EMA with the argument names of the hook published with the paper.

    The published hook switches in every epoch except the due ones, so never with
    an interval of 1. This one switches at the end of every ``switch_interval``-th epoch
    or step.

    Args:
        momentum: the decay, that is, the weight of the OLD shadow, in [0, 1).
        resume_from: must be None, as in the published configs; the runner resumes.
        warmup: "count", the default throughout this package; "linear", "exp" or
            "constant", as in the published hook; or None for a constant decay.
        warmup_iters: length of the warmup in steps.
        warmup_ratio: the decay starts at this fraction of ``momentum``.
        switch_params: False averages without switching.
        switch_by_iter: count the next three in steps instead of epochs.
        switch_start: switching starts after this epoch or step.
        switch_end: no switch after this epoch or step.
        switch_interval: epochs or steps between switches.
        full_params_ema: average floating-point buffers too, instead of copying them.
        update_interval: average only every k-th step, with ``momentum``.
        live_share: fraction of the live weights that a switch keeps.
        optimizer_state: "keep" or "reset" the optimizer's moments at a switch.
        dtype: dtype of the average, as for :class:`switch_ema.Averager`.
        device: device of the average.
        include: average only these tensors.
        exclude: do not average these tensors.
        flat: move the model into one block of memory, for the fastest update.
        steps_per_epoch: length of an epoch, if it must be known during the first.
        best: see :class:`AveragerHook`, also for the next three.
        evaluate: which weights validation during training measures.
        decays: decays of further averages, which do not affect the training.
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
    """Replace ``runner.call_hook`` for a block."""
    runner.call_hook = call_hook
    try:
        yield
    finally:
        del runner.call_hook


def _without_hooks(runner: Runner, run: Callable[[], Any]) -> Any:
    """Run a loop without calling hooks; return its metrics."""
    with _calling(runner, lambda *args, **kwargs: None):
        return run()


def _length(runner: Runner, wrapper: Any, *others: Any) -> str:
    """Return the length of the training in epochs or optimizer steps."""
    if isinstance(runner.train_loop, EpochBasedTrainLoop):
        return f"{runner.max_epochs}ep"
    return f"{runner.max_iters / wrapper._accumulative_counts}it"


def _validates_now(runner: Runner, is_whole_epoch: bool) -> bool:
    """Whether validation is due now, by the rule of the training loop's ``run()``."""
    loop = runner.train_loop
    done, last = loop.iter, loop.max_iters
    if isinstance(loop, EpochBasedTrainLoop):
        done, last = loop.epoch, loop.max_epochs
        if not is_whole_epoch:
            return False
    due = done % loop.val_interval == 0 or done == last
    return runner.val_loop is not None and done >= loop.val_begin and due


def _per_step(decay: DecaySchedule, interval: int) -> DecayLike:
    """Take the k-th root, since ``update_every=k`` applies ``decay**k``."""
    if interval == 1:
        return decay
    return lambda step: decay(step) ** (1 / interval)


def _on_cpu(weights: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value.cpu() if hasattr(value, "cpu") else value
        for name, value in weights.items()
    }
