"""Weight averaging in Keras 3 on the torch backend: one callback, any method."""

import functools
import os
from collections.abc import Callable, Mapping
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

# Only there is a Keras model a torch module. A choice of the user's stands.
os.environ.setdefault("KERAS_BACKEND", "torch")
if TYPE_CHECKING:
    from typing_extensions import Unpack

with needed("keras", extra="keras"):
    import keras


class SwitchEMACallback(HasAverages, keras.callbacks.Callback):  # type: ignore[misc]
    """Average the weights of a Keras model during ``fit``.

    One update per step that the optimizer really takes: with
    ``gradient_accumulation_steps`` that is one per accumulation. Validation in ``fit``
    and later ``evaluate`` and ``predict`` run on the averaged weights, and the live
    ones are put back afterwards, also after an exception.

    Place it before callbacks that save, so that they see an epoch with its end. To
    resume, save :meth:`state_dict` beside the model, hand it to
    :meth:`load_state_dict` of a new callback, and call ``fit`` with ``initial_epoch``.

    As in the callbacks of all trainers, ``options`` may have, beside those of the
    method:

    - ``best``: keep the best average by a metric of the validations in ``fit``, such as
      ``BestBy("val_accuracy", higher_is_better=True, n=1000)``; afterwards ``evaluate``
      and ``predict`` use it where the last average is clearly worse, and
      ``callback.best`` has it.
    - ``evaluate``: which weights the validations in ``fit`` measure: "averaged",
      "live", or "both", where the metrics of the live weights stand beside the usual
      ones as ``val_loss_live``.
    - ``decays``: decays of further, passive averages of the same training, such as
      ``[0.99, 0.9999]``; the validations in ``fit`` measure each of them, as
      ``val_loss_ema_0.99``, and ``callback.further`` has them.
    - ``log_averaging``: add decay, number of switches, the share of the progress that a
      switch kept and the distance of the live weights to the average to the logs of
      each epoch, for the callbacks after this one and for the history.

    Args:
        method: a name of ``switch_ema.METHODS``.
        options: those above, and those of the method, such as ``decay``.

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
                "Averaging needs the torch backend of Keras, not "
                f"{keras.backend.backend()}; set KERAS_BACKEND=torch before the import."
            )
        self._settings = AveragingSettings.of(method, options)
        self._saved: Mapping[str, Any] | None = None
        self._averaged: Any = None
        self._iterations = 0

    def on_train_begin(self, logs: Any = None) -> None:
        """Make the averager, now that the model is built.

        A later ``fit`` of the same model goes on, that of another one starts anew.
        """
        self._iterations = int(self.model.optimizer.iterations)
        if self._averages is None or self._averaged is not self.model:
            self._averages = Averages(self._settings, self.model)
            self._averaged = self.model
        averages = self._averages
        averages.is_training = True
        around = functools.partial(_measure_all, averages)
        run_on_average(self.model, "evaluate", averages.evaluated, around)
        run_on_average(self.model, "predict", averages.evaluated)
        if self._saved is not None:
            names = {key: name for name, key in self._positions().items()}
            averages.load_state_dict(_renamed(self._saved, names))
            self._saved = None

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Average if the optimizer has stepped."""
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
        """Note the score of the validation, if there was one, and end the epoch."""
        assert self._averages is not None
        logs = {} if logs is None else logs
        if any(name.startswith("val_") for name in logs):
            self._averages.note(logs)
        logs.update(self._averages.end_epoch())

    def on_train_end(self, logs: Any = None) -> None:
        """From now on, show the best average."""
        assert self._averages is not None
        self._averages.finish()

    def state_dict(self) -> dict[str, Any]:
        """Return the averager's state, to be saved with the model."""
        if self._averages is None:
            raise RuntimeError("There is no state to save before fit() starts.")
        return _renamed(self._averages.state_dict(), self._positions())

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a saved state when ``fit`` begins."""
        self._saved = state_dict

    def _positions(self) -> dict[str, str]:
        """Number the variables: a model that was saved and loaded has other names.

        Among them is the seed of each Dropout, which Keras does not call a weight.
        """
        names = {id(tensor): name for name, tensor in self.model.named_parameters()}
        values = [variable.value for variable in self.model.variables]
        tracked = [value for value in values if id(value) in names]
        return {names[id(one)]: f"weights.{i}" for i, one in enumerate(tracked)}


def _measure_all(
    averages: Averages,
    original: Callable[..., Any],
    shown: Callable[..., Any],
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Let a validation in ``fit`` measure further weights, without its callbacks."""
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
