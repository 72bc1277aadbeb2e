"""Weight averaging with Accelerate: one line after ``accelerator.prepare``."""

import functools
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from torch import nn

from switch_ema._extras import needed
from switch_ema.averaging.averager import Averager
from switch_ema.averaging.model.names import unwrap
from switch_ema.averaging.registry import MethodOptions
from switch_ema.averaging.view.stage import stage_of
from switch_ema.integrations.averages import (
    Averages,
    AveragingSettings,
    CallbackOptions,
    takes_callback_options,
)
from switch_ema.integrations.options import spelled_out
from switch_ema.integrations.sharding import gathered

if TYPE_CHECKING:
    from typing_extensions import Unpack

with needed("accelerate", extra="accelerate"):
    from accelerate import Accelerator
    from accelerate.optimizer import AcceleratedOptimizer


class Averaging:
    """The averages of a prepared model, measured on held-out data as the loop asks.

    Steps count where ``accelerator.accumulate`` lets the optimizer step and the
    GradScaler does not skip. ``accelerator.save_state`` stores the averages and the
    live weights, also when called inside ``averaged()``; ``load_state`` takes them
    back.

    As in the callbacks of all trainers, ``options`` may have, beside those of the
    method:

    - ``best``: keep the best average by a metric that :meth:`evaluate` measures, such
      as ``BestBy("val_accuracy", higher_is_better=True, n=1000)``; :meth:`averaged`
      then shows it where the last average is clearly worse, and ``averaging.best`` has
      it.
    - ``evaluate``: which weights :meth:`evaluate` measures: "averaged", "live", or
      "both", where the metrics of the live weights stand beside the usual ones as
      ``val_loss_live``.
    - ``decays``: decays of further, passive averages of the same training, such as
      ``[0.99, 0.9999]``; :meth:`evaluate` measures each of them, as
      ``val_loss_ema_0.99``, and ``averaging.further`` has them.
    - ``log_averaging``: log decay, number of switches, the share of the progress that a
      switch kept and the distance of the live weights to the average at the end of each
      epoch, and what :meth:`evaluate` measures, through the accelerator's own trackers.
      Their step is the number of optimizer steps.

    Args:
        accelerator: the one that prepared the model.
        model: as ``accelerator.prepare`` returned it.
        optimizer: as ``accelerator.prepare`` returned it, one or a list.
        method: a name of ``switch_ema.METHODS``.
        options: those above, and those of the method, such as ``decay``.
    """

    @takes_callback_options
    def __init__(
        self,
        accelerator: Accelerator,
        model: nn.Module,
        optimizer: Any,
        method: str = "switch-ema",
        **options: "Unpack[CallbackOptions]",
    ) -> None:
        if "count" in options:
            options["count"] = _inside(options["count"])
        settings = AveragingSettings.of(method, options)
        wrapped = optimizer if isinstance(optimizer, (list, tuple)) else [optimizer]
        inner = [_inside(one) for one in wrapped]
        self._accelerator, self._logs = accelerator, settings.log_averaging
        self._averages = Averages(settings, model, inner)
        self.averager: Averager = self._averages.averager
        self.best, self.further = self._averages.best, self._averages.further
        accelerator.register_for_checkpointing(_Whole(self._averages))
        _save_live_weights(accelerator, model)

    def end_epoch(self) -> None:
        """Say that one epoch has ended, and do what is due at its end."""
        self._log(self._averages.end_epoch())

    def evaluate(self, measure: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
        """Measure the weights that were asked for, once each.

        Args:
            measure: returns the metrics of the model as it is, by name. With several
                processes all must call, and ``best`` takes the score of rank 0.

        Returns:
            The metrics, also those whose names end in ``_live`` or ``_ema_0.99``.
        """
        more = self._averages.measure_more(measure)
        with self._averages.evaluated_view():
            metrics = {**measure(), **more}
        self._averages.note(metrics)
        self._log(metrics)
        return metrics

    def averaged(self) -> AbstractContextManager[nn.Module]:
        """Hold the average in the model for a block: with ``best`` the chosen one."""
        return (self.best or self.averager).averaged()

    def _log(self, values: Mapping[str, Any]) -> None:
        if self._logs:
            self._accelerator.log(dict(values), step=self.averager.steps)


@spelled_out
def prepare_averager(
    accelerator: Accelerator,
    model: nn.Module,
    optimizer: Any,
    method: str = "switch-ema",
    **options: "Unpack[MethodOptions]",
) -> Averager:
    """Make the averager of :class:`Averaging` alone, where nothing is measured.

    Args:
        accelerator: the one that prepared the model.
        model: as ``accelerator.prepare`` returned it.
        optimizer: as ``accelerator.prepare`` returned it, one or a list.
        method: a name of ``switch_ema.METHODS``.
        options: the options of the method, such as ``decay`` and ``switch_every``.

    Example::

        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        averager = prepare_averager(accelerator, model, optimizer, decay=0.999)
    """
    return Averaging(accelerator, model, optimizer, method, **options).averager


class _Whole:
    """Averages with whole tensors as state: Accelerate lets one process write it."""

    def __init__(self, averages: Averages) -> None:
        self._averages = averages

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = gathered(self._averages.state_dict())
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self._averages.load_state_dict(state_dict)  # each process takes its own part


def _save_live_weights(accelerator: Accelerator, model: nn.Module) -> None:
    """Let ``save_state`` see the live weights, also inside ``averaged()``.

    A hook before saving would come too late: sharded models have been written by then.
    """
    save_state = accelerator.save_state

    @functools.wraps(save_state)
    def save_live(*args: Any, **kwargs: Any) -> Any:
        with stage_of(unwrap(model)).showing(None):
            return save_state(*args, **kwargs)

    accelerator.save_state = save_live


def _inside(optimizer: Any) -> Any:
    """Return the torch optimizer, which steps only when a step is due."""
    if isinstance(optimizer, AcceleratedOptimizer):
        return optimizer.optimizer
    return optimizer
