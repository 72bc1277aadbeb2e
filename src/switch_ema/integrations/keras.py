"""Weight averaging in Keras 3 on the torch backend: one callback, any method."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from switch_ema._extras import needed
from switch_ema.averaging.averager import Averager
from switch_ema.averaging.registry import MethodOptions, create_averager
from switch_ema.integrations.options import check_method, spelled_out
from switch_ema.integrations.wrapping import run_on_average

# Only there is a Keras model a torch module. A choice of the user's stands.
os.environ.setdefault("KERAS_BACKEND", "torch")
if TYPE_CHECKING:
    from typing_extensions import Unpack

with needed("keras", extra="keras"):
    import keras


class SwitchEMACallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Average the weights of a Keras model during ``fit``.

    One update per step that the optimizer really takes: with
    ``gradient_accumulation_steps`` that is one per accumulation. Validation in ``fit``
    and later ``evaluate`` and ``predict`` run on the averaged weights, and the live
    ones are put back afterwards, also after an exception.

    Place it before callbacks that save, so that they see an epoch with its end. To
    resume, save :meth:`state_dict` beside the model, hand it to
    :meth:`load_state_dict` of a new callback, and call ``fit`` with ``initial_epoch``.

    Args:
        method: a name of ``switch_ema.METHODS``.
        options: the options of the method, such as ``decay`` and ``switch_every``.

    Example::

        model.fit(x, y, callbacks=[SwitchEMACallback(decay=0.99)])
    """

    @spelled_out
    def __init__(
        self, method: str = "switch-ema", **options: "Unpack[MethodOptions]"
    ) -> None:
        super().__init__()
        if keras.backend.backend() != "torch":
            raise RuntimeError(
                "Averaging needs the torch backend of Keras, not "
                f"{keras.backend.backend()}; set KERAS_BACKEND=torch before the import."
            )
        check_method(method, options)
        self.averager: Averager | None = None
        """Made when ``fit`` begins."""
        self._method, self._options = method, options
        self._saved: Mapping[str, Any] | None = None
        self._averaged: Any = None
        self._iterations = 0

    def on_train_begin(self, logs: Any = None) -> None:
        """Make the averager, now that the model is built.

        A later ``fit`` of the same model goes on, that of another one starts anew.
        """
        self._iterations = int(self.model.optimizer.iterations)
        if self.averager is None or self._averaged is not self.model:
            self.averager = create_averager(self._method, self.model, **self._options)
            self._averaged = self.model
        averager = self.averager
        for method in ("evaluate", "predict"):
            run_on_average(self.model, method, lambda: averager)
        if self._saved is not None:
            names = {key: name for name, key in self._positions().items()}
            self.averager.load_state_dict(_renamed(self._saved, names))
            self._saved = None

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Average if the optimizer has stepped."""
        assert self.averager is not None
        iterations = int(self.model.optimizer.iterations)
        if iterations > self._iterations + 1:
            raise RuntimeError(
                "steps_per_execution must be 1 to average after each step, got "
                f"{self.model.steps_per_execution}."
            )
        if iterations > self._iterations:
            self.averager.update()
        self._iterations = iterations

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """End the epoch."""
        assert self.averager is not None
        self.averager.end_epoch()

    def state_dict(self) -> dict[str, Any]:
        """Return the averager's state, to be saved with the model."""
        if self.averager is None:
            raise RuntimeError("There is nothing to save before fit() has begun.")
        return _renamed(self.averager.state_dict(), self._positions())

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


def _renamed(state: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {
        key: {names.get(name, name): tensor for name, tensor in value.items()}
        if isinstance(value, Mapping)
        else value
        for key, value in state.items()
    }
