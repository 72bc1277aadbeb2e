"""Weight averaging in Keras 3 on the torch backend: one callback, any method."""

import functools
import os
import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any

from switch_ema._extras import needed
from switch_ema.integrations.averages import (
    Averages,
    AveragingSettings,
    CallbackOptions,
    HasAverages,
    takes_callback_options,
)
from switch_ema.integrations.wrapping import run_on_average

# Keras models are torch modules only on this backend. The user's choice wins.
os.environ.setdefault("KERAS_BACKEND", "torch")
if TYPE_CHECKING:
    from typing_extensions import Unpack

with needed("keras", extra="keras"):
    import keras


class SwitchEMACallback(HasAverages, keras.callbacks.Callback):  # type: ignore[misc]
    """Average the weights of a Keras model during ``fit``.

    Updates once per real optimizer step: with ``gradient_accumulation_steps``, once per
    accumulation. Validation in ``fit`` and later calls of ``evaluate`` and ``predict``
    run on the averaged weights; the live weights are restored afterwards, even after an
    exception.

    Place it before callbacks that save, since the switch must come first. To resume,
    save :meth:`state_dict` along with the model, pass it to :meth:`load_state_dict` of
    a new callback, and call ``fit`` with ``initial_epoch``.

    Besides the method's options, ``options`` takes those that all trainers share:

    - ``best``: keep the best average by a validation metric of ``fit``, such as
      ``BestBy("val_accuracy", higher_is_better=True, n=1000)``. After ``fit``,
      ``evaluate`` and ``predict`` use it if the last average is clearly worse.
      Available as ``callback.best``.
    - ``evaluate``: which weights validation in ``fit`` measures: "averaged", "live", or
      "both", which adds the metrics of the live weights as ``val_loss_live``.
    - ``decays``: decays of further averages, such as ``[0.99, 0.9999]``, which do not
      affect the training. Validation in ``fit`` measures each, as
      ``val_loss_ema_0.99``. Available as ``callback.further``.
    - ``log_averaging``: add the decay, the number of switches, the share of progress
      that a switch kept, and the distance from the live weights to the average to the
      logs of each epoch, for later callbacks and the history.

    Args:
        method: a key of ``switch_ema.METHODS``.
        options: those above, and the method's, such as ``decay``.

    Example::

        model.fit(x, y, callbacks=[SwitchEMACallback(decay=0.99)])
    """

    @takes_callback_options
    def __init__(
        self,
        method: str = "switch-ema",
        **options: "Unpack[CallbackOptions]",
    ) -> None:
        super().__init__()
        if keras.backend.backend() != "torch":
            raise RuntimeError(
                "Averaging needs the torch backend of Keras, got "
                f"{keras.backend.backend()}; set KERAS_BACKEND=torch before importing "
                "keras."
            )
        self._settings = AveragingSettings.of(method, options)
        self._saved: Mapping[str, Any] | None = None
        self._averaged: Any = None
        self._iterations = 0

    def on_train_begin(self, logs: Any = None) -> None:
        """Create the averager, now that the model is built.

        Another ``fit`` of the same model continues; a different model starts fresh.
        """
        self._iterations = int(self.model.optimizer.iterations)
        if self._averages is None or self._averaged is not self.model:
            epochs = (self.params or {}).get("epochs")
            length = f"{epochs}ep" if epochs else None
            self._averages = Averages(self._settings, self.model, length=length)
            self._averaged = self.model
        averages = self._averages
        averages.is_training = True
        fitting = functools.partial(_is_fitting, self.model)
        if not fitting():  # a loop of the user's own, which cannot be looked for
            fitting = functools.partial(bool, True)
        around = functools.partial(_measure_all, averages, fitting)
        for method in ("evaluate", "predict"):
            run_on_average(self.model, method, averages.evaluated, around)
        if self._saved is not None:
            names = {key: name for name, key in self._positions().items()}
            averages.load_state_dict(_renamed(self._saved, names))
            self._saved = None

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Update the average if the optimizer has stepped."""
        assert self._averages is not None
        iterations = int(self.model.optimizer.iterations)
        if iterations > self._iterations + 1:
            raise RuntimeError(
                "steps_per_execution must be 1 to average after each step, got "
                f"{self.model.steps_per_execution}."
            )
        if iterations > self._iterations:
            self._averages.update()
        self._iterations = iterations

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Record the validation score, if any, and end the epoch."""
        assert self._averages is not None
        logs = {} if logs is None else logs
        if any(name.startswith("val_") for name in logs):
            self._averages.note(logs)
        logs.update(self._averages.end_epoch())

    def on_train_end(self, logs: Any = None) -> None:
        """Use the best average from now on."""
        assert self._averages is not None
        self._averages.finish()

    def state_dict(self) -> dict[str, Any]:
        """Return the averager's state, to save with the model."""
        if self._averages is None:
            raise RuntimeError(
                "No state exists before fit() starts; call state_dict() after that."
            )
        return _renamed(self._averages.state_dict(), self._positions())

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load a saved state when ``fit`` begins."""
        self._saved = state_dict

    def _positions(self) -> dict[str, str]:
        """Map names to positions, since names change when a model is saved and loaded.

        Includes the seed of each Dropout, which Keras does not count as a weight.
        """
        names = {id(tensor): name for name, tensor in self.model.named_parameters()}
        values = [variable.value for variable in self.model.variables]
        tracked = [value for value in values if id(value) in names]
        return {names[id(one)]: f"weights.{i}" for i, one in enumerate(tracked)}


def _is_fitting(model: Any) -> bool:
    """Whether ``model.fit`` is running, that is, among the calling functions."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        is_fit = frame.f_code.co_name == "fit"
        if is_fit and frame.f_locals.get("self") is model:
            return True
        frame = frame.f_back
    return False


def _measure_all(
    averages: Averages,
    fitting: Callable[[], bool],
    original: Callable[..., Any],
    shown: Callable[..., Any],
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Measure further weights in a validation of ``fit``, without its callbacks."""
    # No event reports that an exception has ended the training.
    averages.is_training = averages.is_training and fitting()
    more = {}
    if kwargs.get("return_dict"):  # as fit() calls it
        quiet = kwargs | {"callbacks": None, "verbose": 0}
        more = averages.measure_more(lambda: original(*args, **quiet))
    found = shown(*args, **kwargs)
    return found | more if more else found


def _renamed(state: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {
        names.get(key, key): _renamed(value, names)
        if isinstance(value, Mapping)
        else value
        for key, value in state.items()
    }
