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
    """Average the weights of a prepared model, and evaluate the averages.

    Counts real optimizer steps: not the micro-batches of
    ``accelerator.accumulate``, nor steps that the GradScaler skips.
    ``accelerator.save_state`` stores the averages and the live weights, even inside
    ``averaged()``; ``load_state`` restores them.

    Besides the method's options, ``options`` takes those that all trainers share:

    - ``best``: keep the best average by a metric that :meth:`evaluate` measures, such
      as ``BestBy("val_accuracy", higher_is_better=True, n=1000)``. :meth:`averaged`
      then shows it if the last average is clearly worse. Available as
      ``averaging.best``.
    - ``evaluate``: which weights :meth:`evaluate` measures: "averaged", "live", or
      "both", which adds the metrics of the live weights as ``val_loss_live``.
    - ``decays``: decays of further averages, such as ``[0.99, 0.9999]``, which do not
      affect the training. :meth:`evaluate` measures each, as ``val_loss_ema_0.99``.
      Available as ``averaging.further``.
    - ``log_averaging``: log the decay, the number of switches, the share of progress
      that a switch kept, and the distance from the live weights to the average at the
      end of each epoch, plus the metrics of :meth:`evaluate`, through the accelerator's
      trackers. The logged step is the number of optimizer steps.

    Args:
        accelerator: the Accelerator that prepared the model.
        model: the model that ``accelerator.prepare`` returned.
        optimizer: the optimizer that ``accelerator.prepare`` returned, or a list.
        method: a key of ``switch_ema.METHODS``.
        options: those above, and the method's, such as ``decay``.
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
        """End the epoch: switch if due, and log."""
        self._log(self._averages.end_epoch())

    def evaluate(self, measure: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
        """Measure each requested set of weights once.

        Args:
            measure: returns the metrics of the model's current weights, by name. With
                several processes, all must call this, and ``best`` uses rank 0's score.

        Returns:
            All metrics, including those with suffixes such as ``_live``, ``_ema_0.99``.
        """
        more = self._averages.measure_more(measure)
        with self._averages.evaluated_view():
            metrics = {**measure(), **more}
        self._averages.note_one_of_several(metrics)
        self._log(metrics)
        return metrics

    def averaged(self) -> AbstractContextManager[nn.Module]:
        """Put the average into the model for a block; with ``best``, the chosen one."""
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
    """Return only the averager of :class:`Averaging`, without evaluation.

    Args:
        accelerator: the Accelerator that prepared the model.
        model: the model that ``accelerator.prepare`` returned.
        optimizer: the optimizer that ``accelerator.prepare`` returned, or a list.
        method: a key of ``switch_ema.METHODS``.
        options: the method's options, such as ``decay`` and ``switch_every``.

    Example::

        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        averager = prepare_averager(accelerator, model, optimizer, decay=0.999)
    """
    return Averaging(accelerator, model, optimizer, method, **options).averager


class _Whole:
    """Gathers the state of sharded averages, since only one process writes it."""

    def __init__(self, averages: Averages) -> None:
        self._averages = averages

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = gathered(self._averages.state_dict())
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self._averages.load_state_dict(state_dict)  # each process takes its shards


def _save_live_weights(accelerator: Accelerator, model: nn.Module) -> None:
    """Make ``save_state`` save the live weights, even inside ``averaged()``.

    A pre-save hook would run too late: sharded models are already written by then.
    """
    save_state = accelerator.save_state

    @functools.wraps(save_state)
    def save_live(*args: Any, **kwargs: Any) -> Any:
        with stage_of(unwrap(model)).showing(None):
            return save_state(*args, **kwargs)

    accelerator.save_state = save_live


def _inside(optimizer: Any) -> Any:
    """Unwrap to the torch optimizer, which steps only when accumulation is done."""
    if isinstance(optimizer, AcceleratedOptimizer):
        return optimizer.optimizer
    return optimizer
