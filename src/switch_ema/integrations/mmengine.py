"""Weight averaging in MMEngine: hooks for the runner, also from a config."""

from typing import TYPE_CHECKING, Any, Literal

import torch

from switch_ema._checks import check_choice, check_count
from switch_ema._extras import needed
from switch_ema.averaging.averager import Averager
from switch_ema.averaging.model.names import load_weights
from switch_ema.averaging.model.slots import Filter
from switch_ema.averaging.registry import MethodOptions, create_averager
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
from switch_ema.integrations.options import check_method, spelled_out
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
    from mmengine.runner import Runner

Warmup = Literal["count", "linear", "exp", "constant"]

_KEY = "switch_ema"
_WARMUPS = {
    "linear": linear_warmup,
    "exp": exponential_warmup,
    "constant": constant_warmup,
}


@HOOKS.register_module()
class AveragerHook(Hook):  # type: ignore[misc]
    """Average the weights of the runner's model, by any method.

    Real optimizer steps count. Validation and test run on the averaged weights, and
    the live ones are put back afterwards, also after an exception. A checkpoint has
    the averaged weights under ``state_dict``, as with MMEngine's ``EMAHook``, and the
    live ones beside them, from which ``resume`` goes on.

    Args:
        method: a name of ``switch_ema.METHODS``.
        options: the options of the method, such as ``decay`` and ``switch_every``.

    Example::

        custom_hooks = [dict(type="AveragerHook", method="ema", decay=0.999)]
    """

    priority = "NORMAL"  # before CheckpointHook, which then sees an epoch with its end

    @spelled_out
    def __init__(
        self, method: str = "switch-ema", **options: "Unpack[MethodOptions]"
    ) -> None:
        check_method(method, options)
        self.averager: Averager | None = None
        """Made when training begins."""
        self._method, self._options = method, options
        self._saved: dict[str, Any] | None = None

    def before_run(self, runner: Runner) -> None:
        """Let the loops for validation and test run on the average."""
        check_alone(self, runner.hooks, AveragerHook)
        for loop in (runner._val_loop, runner._test_loop):
            # A loop that is not in use is still a part of the configuration.
            if hasattr(loop, "run"):
                run_on_average(loop, "run", lambda: self.averager)

    def before_train(self, runner: Runner) -> None:
        """Make the averager, and on resuming load its state and the live weights."""
        if self.averager is not None:
            self.averager.detach()
        wrapper = runner.optim_wrapper
        several = isinstance(wrapper, OptimWrapperDict)
        wrappers = wrapper.optim_wrappers.values() if several else [wrapper]
        self.averager = create_averager(
            self._method,
            runner.model,
            [one.optimizer for one in wrappers],
            **self._options,
        )
        if self._saved is not None and runner.iter > 0:
            load_weights(runner.model, self._saved["live"])
            self.averager.load_state_dict(self._saved["averager"])
        elif runner.iter > 0:
            warn_without_state()
        self._saved = None

    def after_train_epoch(self, runner: Runner) -> None:
        """End the epoch."""
        assert self.averager is not None
        self.averager.end_epoch()

    def before_save_checkpoint(
        self, runner: Runner, checkpoint: dict[str, Any]
    ) -> None:
        """Store both sets of weights and the averager."""
        if self.averager is not None:
            checkpoint["state_dict"] = _on_cpu(self.averager.averaged_state_dict())
            checkpoint[_KEY] = {
                "live": _on_cpu(self.averager.live_state_dict()),
                "averager": self.averager.state_dict(),
            }

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict[str, Any]) -> None:
        """Keep what resuming needs; until then, the averaged weights are loaded."""
        if runner._train_loop is not None:
            self._saved = checkpoint.get(_KEY)
        if self.averager is not None:
            # Weights loaded after a training are shown as they are.
            self.averager.detach()
            self.averager = None


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
        full_params_ema: average floating-point buffers too; if not they are copied.
        update_interval: average at every k-th step only, with ``momentum``.
        live_share: the share of the live weights that a switch keeps.
        optimizer_state: "keep" or "reset" the optimizer's moments at a switch.
        dtype: the dtype of the average, as of :class:`switch_ema.Averager`.
        device: the device of the average.
        include: average only these tensors.
        exclude: do not average these tensors.
        flat: move the model into one block of memory, for the fastest update.
        steps_per_epoch: the length of an epoch, if it must be known during the first.
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
        super().__init__("switch-ema" if switch_params else "ema", **options)


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
