"""Weight averaging in Ignite: a handler for a trainer and its evaluators."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import nn

from switch_ema._extras import needed
from switch_ema.averaging.averager import Averager
from switch_ema.averaging.model.names import load_weights
from switch_ema.averaging.step.hooks import Optimizers
from switch_ema.integrations.averages import (
    Averages,
    AveragingSettings,
    CallbackOptions,
    takes_callback_options,
)
from switch_ema.integrations.wrapping import run_on_average, warn_without_state

if TYPE_CHECKING:
    from typing_extensions import Unpack

with needed("ignite", extra="ignite"):
    from ignite.engine import Engine, Events
    from ignite.metrics import Metric

_ENDS = (Events.EPOCH_COMPLETED, Events.COMPLETED)


class Weights:
    """The live or averaged weights of a model, for ``Checkpoint`` to save."""

    def __init__(self, model: nn.Module, read: Callable[[], dict[str, Any]]) -> None:
        self._model, self._read = model, read

    def state_dict(self) -> dict[str, Any]:
        """Return these weights, whichever weights the model holds now."""
        return self._read()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load weights into the model."""
        load_weights(self._model, state_dict)


class SwitchEMAHandler:
    """Average the weights of a model that an engine trains.

    Counts real optimizer steps, not engine iterations. Evaluators passed to
    :meth:`attach` run on the averaged weights; the live weights are restored
    afterwards, even after an exception.

    To save, pass ``handler.live`` to ``Checkpoint`` instead of the model, which may
    hold either set of weights, along with the handler::

        to_save = {"model": handler.live, "averaging": handler, "trainer": trainer}

    For deployment, save ``handler.averaged``.

    Besides the method's options, ``options`` takes those that all trainers share:

    - ``best``: keep the best average by a metric of the held-out evaluator, such as
      ``BestBy("accuracy", higher_is_better=True, n=1000)``. After training, evaluators
      and ``handler.averaged`` use it if the last average is clearly worse. Available
      as ``handler.best``.
    - ``evaluate``: which weights evaluators measure while the trainer runs: "averaged",
      "live", or "both", which adds the metrics of the live weights as ``loss_live``.
    - ``decays``: decays of further averages, such as ``[0.99, 0.9999]``, which do not
      affect the training. While the trainer runs, evaluators measure each, as
      ``loss_ema_0.99``. Available as ``handler.further``.
    - ``log_averaging``: put the decay, the number of switches, the share of progress
      that a switch kept, and the distance from the live weights to the average into
      the trainer's ``state.metrics`` at the end of each epoch, for its loggers.

    Args:
        model: see :class:`~switch_ema.Averager`.
        optimizer: one optimizer or several.
        method: a key of ``switch_ema.METHODS``.
        options: those above, and the method's, such as ``decay``.
    """

    @takes_callback_options
    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizers,
        method: str = "switch-ema",
        **options: "Unpack[CallbackOptions]",
    ) -> None:
        settings = AveragingSettings.of(method, options)
        self._averages = Averages(settings, model, optimizer)
        self._averages.is_training = False
        self._held_out: Engine | None = None
        self._more: set[str] = set()  # metrics of further weights, of all evaluators
        self.averager: Averager = self._averages.averager
        self.best, self.further = self._averages.best, self._averages.further
        self.live = Weights(model, self.averager.live_state_dict)
        self.averaged = Weights(
            model, lambda: self._averages.shown().averaged_state_dict()
        )

    def attach(
        self, trainer: Engine, *evaluators: Engine, held_out: Engine | None = None
    ) -> None:
        """Follow the epochs of ``trainer``; run ``evaluators`` on the average.

        Attach before the handlers that save or evaluate, since the switch must come
        first. More evaluators can be attached later, with the same trainer.

        Args:
            trainer: the engine that trains.
            evaluators: the engines that evaluate.
            held_out: the evaluator whose metric ``best`` uses; required if there are
                several.
        """
        if not trainer.has_event_handler(self._end_epoch, Events.EPOCH_COMPLETED):
            trainer.add_event_handler(Events.STARTED, self._start)
            trainer.add_event_handler(Events.EPOCH_COMPLETED, self._end_epoch)
            trainer.add_event_handler(Events.COMPLETED, self._complete)
            run = functools.partial(self._training, trainer, trainer.run)
            trainer.run = run  # type: ignore[method-assign]
        for evaluator in evaluators:
            # An EXCEPTION_RAISED handler would make the engine swallow exceptions.
            around = functools.partial(self._measure_all, evaluator)
            run_on_average(evaluator, "run", self._averages.evaluated, around)
        is_open = self._held_out is None and bool(evaluators)
        if self.best is not None and (is_open or held_out is not None):
            self._watch(evaluators, held_out)

    def _watch(self, evaluators: Sequence[Engine], held_out: Engine | None) -> None:
        """Record the scores of one evaluator, before handlers that save run."""
        if held_out is None and len(evaluators) > 1:
            raise ValueError(
                "best needs one evaluator of held-out data; name it with "
                "attach(trainer, ..., held_out=evaluator)."
            )
        watched = evaluators[0] if held_out is None else held_out
        if watched not in evaluators:
            raise ValueError("held_out must be one of the evaluators given to attach.")
        if self._held_out is not None:
            self._held_out.remove_event_handler(self._note, Events.COMPLETED)
        watched.add_event_handler(Events.COMPLETED, self._note)
        self._held_out = watched

    def _training(
        self, trainer: Engine, run: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        """Run the trainer; when it ends, even by an exception, training is over."""
        try:
            return run(*args, **kwargs)
        finally:
            # interrupt() only pauses: the next run() goes on, without STARTED.
            if trainer.last_event_name != Events.INTERRUPT:
                self._averages.is_training = False

    # Event handlers.

    def _start(self, trainer: Engine) -> None:
        self._averages.is_training = True
        if trainer.state.iteration > 0 and not (
            self.averager.steps or self.averager.epochs
        ):
            warn_without_state()
        self._end_resumed_epoch(trainer)

    def _end_resumed_epoch(self, trainer: Engine) -> None:
        """End the previous epoch if the resumed checkpoint is from before its end."""
        done, length = trainer.state.iteration, trainer.state.epoch_length
        is_over = done > 0 and length is not None and done % length == 0
        if is_over and self.averager.position.step_in_epoch > 0:
            self._end_epoch(trainer)

    def _end_epoch(self, trainer: Engine) -> None:
        trainer.state.metrics.update(self._averages.end_epoch())

    def _complete(self) -> None:
        self._averages.finish()

    def _note(self, evaluator: Engine) -> None:
        self._averages.note(evaluator.state.metrics)

    def _measure_all(
        self,
        evaluator: Engine,
        original: Callable[..., Any],
        shown: Callable[..., Any],
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Also measure further weights, and put them where loggers look."""

        def measure() -> dict[str, Any]:
            evaluator.state.metrics = {}
            with _ends_for_metrics_alone(evaluator):
                return dict(original(*args, **kwargs).metrics)

        for name in self._more:
            evaluator.state.metrics.pop(name, None)
        if self._averages.measures_more:
            _refuse_iterators(*args, **kwargs)
            evaluator.state.metrics = self._averages.measure_more(measure)
            self._more |= evaluator.state.metrics.keys()
        return shown(*args, **kwargs)

    # Saving and resuming.

    def state_dict(self) -> dict[str, Any]:
        """Return the averager's state."""
        return self._averages.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load the averager's state."""
        self._averages.load_state_dict(state_dict)


def _refuse_iterators(data: Any = None, *args: Any, **kwargs: Any) -> None:
    if isinstance(data, Iterator):
        raise ValueError(
            "evaluate='both' and decays read the evaluator's data several times, "
            "which an iterator does not allow; pass a list or a DataLoader."
        )


@contextmanager
def _ends_for_metrics_alone(engine: Engine) -> Iterator[None]:
    """At the end of a run, call only metrics, not handlers that log, save or stop.

    Handlers that prepare a run, such as one that calls ``model.eval()``, still run.
    """
    handlers = engine._event_handlers
    before = {event: handlers[event] for event in _ENDS if event in handlers}
    for event, of_event in before.items():
        handlers[event] = [
            one
            for one in of_event
            if isinstance(getattr(one[0], "__self__", 0), Metric)
        ]
    try:
        yield
    finally:
        handlers.update(before)
