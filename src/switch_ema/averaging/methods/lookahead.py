"""Lookahead: k steps forward, one step back (Zhang et al., 2019)."""

from typing import TYPE_CHECKING

from torch import nn

from switch_ema._checks import check_count
from switch_ema.averaging.averager import Averager
from switch_ema.averaging.shadow.storage import AveragerOptions
from switch_ema.averaging.step.hooks import Optimizers, check_optimizer_state

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Lookahead(Averager):
    """Every k steps move the slow weights towards the fast ones and restart there.

    ``shadow += alpha * (live - shadow); live = shadow``. The shadow holds the slow
    weights. Buffers are copied by default, as Lookahead is about the weights alone.

    Args:
        model: see :class:`Averager`.
        optimizer: see :class:`Averager`.
        k: steps between synchronisations (the Switch EMA paper uses 100).
        alpha: the slow weights' step, in (0, 1].
        optimizer_state: "keep" or "reset" the moments at a synchronisation.
        options: the options of :class:`Averager`.

    >>> lookahead = Lookahead(nn.Linear(1, 1), k=2)
    >>> for _ in range(4):
    ...     lookahead.update()
    >>> lookahead.switches
    2
    """

    name = "lookahead"
    active = True

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizers = None,
        *,
        k: int = 5,
        alpha: float = 0.5,
        optimizer_state: str = "keep",
        **options: "Unpack[AveragerOptions]",
    ) -> None:
        self._k = check_count("k", k)
        if not 0 < alpha <= 1:
            raise ValueError(f"alpha must be in (0, 1], got {alpha!r}.")
        self._alpha = alpha
        self._resets = check_optimizer_state(optimizer_state, optimizer)
        options.setdefault("buffers", "copy")
        super().__init__(model, optimizer, **options)

    @property
    def current_decay(self) -> float:
        """The weight of the old slow weights, ``1 - alpha``."""
        return 1 - self._alpha

    def _after_step(self) -> None:
        if self.steps % self._k == 0:
            self._shadow.average_(self._alpha, self.steps)
            self._write_live(reset_optimizer=self._resets)
