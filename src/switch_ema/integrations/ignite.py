"""Weight averaging in Ignite: a handler for a trainer and its evaluators."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from torch import nn

from switch_ema._extras import needed
from switch_ema.averaging.averager import Averager
from switch_ema.averaging.model.names import load_weights
from switch_ema.averaging.registry import MethodOptions, create_averager
from switch_ema.averaging.step.hooks import Optimizers
from switch_ema.integrations.options import check_method, spelled_out
from switch_ema.integrations.wrapping import run_on_average, warn_without_state

if TYPE_CHECKING:
    from typing_extensions import Unpack

with needed("ignite", extra="ignite"):
    from ignite.engine import Engine, Events


class Weights:
    """One set of a model's weights as an object that ``Checkpoint`` can save."""

    def __init__(self, model: nn.Module, read: Callable[[], dict[str, Any]]) -> None:
        self._model, self._read = model, read

    def state_dict(self) -> dict[str, Any]:
        """Return these weights, whichever the model holds now."""
        return self._read()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load weights into the model."""
        load_weights(self._model, state_dict)


class SwitchEMAHandler:
    """Average the weights of a model that an engine trains.

    Real optimizer steps count, not iterations of the engine. Evaluators that were
    given to :meth:`attach` run on the averaged weights, and the live ones are put back
    afterwards, also after an exception.

    To save, give ``Checkpoint`` the handler and its weights in place of the model,
    since the model may hold either::

        to_save = {"model": handler.live, "averaging": handler, "trainer": trainer}

    For deployment ``handler.averaged`` is the set to save.

    Args:
        model: see :class:`~switch_ema.Averager`.
        optimizer: one or several.
        method: a name of ``switch_ema.METHODS``.
        options: the options of the method, such as ``decay`` and ``switch_every``.
    """

    @spelled_out
    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizers,
        method: str = "switch-ema",
        **options: "Unpack[MethodOptions]",
    ) -> None:
        check_method(method, options)
        self.averager: Averager = create_averager(method, model, optimizer, **options)
        self.live = Weights(model, self.averager.live_state_dict)
        self.averaged = Weights(model, self.averager.averaged_state_dict)

    def attach(self, trainer: Engine, *evaluators: Engine) -> None:
        """End epochs with ``trainer``'s, and let ``evaluators`` see the average.

        Attach before the handlers that save or evaluate, so that they see an epoch with
        its end, and the average.
        Further evaluators can be attached later, with the same trainer.
        """
        end_epoch = self.averager.end_epoch
        if not trainer.has_event_handler(end_epoch, Events.EPOCH_COMPLETED):
            trainer.add_event_handler(Events.EPOCH_COMPLETED, end_epoch)
        if not trainer.has_event_handler(self._check_resumed, Events.STARTED):
            trainer.add_event_handler(Events.STARTED, self._check_resumed, trainer)
        for evaluator in evaluators:
            # An EXCEPTION_RAISED handler would make the engine swallow exceptions.
            run_on_average(evaluator, "run", lambda: self.averager)

    def _check_resumed(self, trainer: Engine) -> None:
        if trainer.state.iteration > 0 and not (
            self.averager.steps or self.averager.epochs
        ):
            warn_without_state()

    def state_dict(self) -> dict[str, Any]:
        """Return the averager's state."""
        return self.averager.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take the averager's state back."""
        self.averager.load_state_dict(state_dict)
