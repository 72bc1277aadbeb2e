"""Equation 3 of the Switch EMA paper, taken literally; for study, not for use."""

from typing import TYPE_CHECKING

from torch import nn

from switch_ema._checks import check_count
from switch_ema.averaging.averager import Averager
from switch_ema.averaging.schedules.decay import DecayLike, as_schedule
from switch_ema.averaging.shadow.storage import AveragerOptions
from switch_ema.averaging.step.hooks import Optimizers

if TYPE_CHECKING:
    from typing_extensions import Unpack


class LiteralEq3(Averager):
    """Average at every step into the live weights, except at every T-th step.

    With ``new`` the optimizer's iterate from the weights ``old``:
    ``live = new`` if the step is a multiple of T, else ``d * old + (1 - d) * new``.
    For SGD that is SGD with its learning rate times ``1 - d``, and a full step every
    T; with the decays of the paper's tables training almost stands still.
    Live weights and shadow are the same after each step.

    Args:
        model: see :class:`Averager`.
        optimizer: see :class:`Averager`.
        decay: the weight ``d`` of the old weights, as for :class:`EMA`.
        every: T in steps.
        options: the options of :class:`Averager`; buffers are copied by default.
    """

    name = "literal-eq3"
    active = True

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizers = None,
        *,
        decay: DecayLike = 0.9,
        every: int = 100,
        **options: "Unpack[AveragerOptions]",
    ) -> None:
        self._decay = as_schedule(decay)
        self._every = check_count("every", every)
        options.setdefault("buffers", "copy")
        super().__init__(model, optimizer, **options)

    @property
    def current_decay(self) -> float:
        """The decay of the latest step, or of the first before there was one."""
        counters = self._counters
        return self._decay(max(counters.steps - 1, 0), counters.steps_per_epoch)

    def _after_step(self) -> None:
        if self.steps % self._every == 0:
            self._shadow.read_()
        else:
            self._shadow.average_(1 - self.current_decay, self.steps)
            self._write_live()
