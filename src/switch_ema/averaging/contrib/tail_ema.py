"""A mixture of the live weights and their average."""

from typing import Any

import torch
from torch import Tensor, nn

from switch_ema._checks import check_share
from switch_ema.averaging.contrib.derived import Derived
from switch_ema.averaging.methods.late_start import LateStart
from switch_ema.averaging.model.slots import Filter
from switch_ema.averaging.schedules.spelling import AUTO, DecayLike, as_schedule
from switch_ema.averaging.schedules.start import StartLike
from switch_ema.averaging.schedules.windows import fraction
from switch_ema.averaging.shadow.storage import Buffers
from switch_ema.averaging.step.hooks import Optimizers
from switch_ema.averaging.step.rounds import Count


class TailEMA(LateStart, Derived):
    """EMA read out as a mixture of the live weights and the average.

    ``shadow = (1 - share) * live + share * average``: the read-out lies between the
    live weights and their average.

    Args:
        model: see :class:`Averager`.
        optimizer: see :class:`Averager`.
        share: the share of the average, in [0, 1]; 1 is :class:`EMA`.
        decay: the weight of the old average, as for :class:`EMA`.
        update_every: average only every k-th step, with ``d ** k``.
        start: where the average begins, as a number of epochs, ``Steps(n)``, or text:
            "5ep", "1000it", "10% of 90ep"; in trainers that know their length also
            "10%". Before, the average is the live model; the decay counts from there.
        buffers: average "statistics", or "average" or "copy" all float buffers.
        dtype: the dtype of averaged parameters; None: the model's, at least float32.
        device: the device of the shadow; None: the model's.
        include: names, globs or a predicate: average only these tensors.
        exclude: names, globs or a predicate: do not average these tensors.
        flat: move the model into one block of memory for the fastest update.
        steps_per_epoch: steps per epoch, if needed before the first epoch ends.
        count: which steps count if there are several optimizers.

    >>> TailEMA(nn.Linear(1, 1), share=0.6).name
    'tail-ema'
    """

    name = "tail-ema"
    display_name = "tail read-out"
    colour = 1

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizers = None,
        *,
        share: float = 0.5,
        decay: DecayLike = AUTO,
        update_every: int = 1,
        start: StartLike = 0,
        buffers: Buffers = "statistics",
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        include: Filter = None,
        exclude: Filter = None,
        flat: bool = False,
        steps_per_epoch: int | None = None,
        count: Count = "round",
    ) -> None:
        self._share = check_share("share", share)
        self._decay = as_schedule(decay, auto=fraction())
        self._set_start(start, update_every)
        super().__init__(
            model,
            optimizer,
            buffers=buffers,
            dtype=dtype,
            device=device,
            include=include,
            exclude=exclude,
            flat=flat,
            steps_per_epoch=steps_per_epoch,
            count=count,
        )
        self._keep_average()

    def _configured(self) -> dict[str, Any]:
        own = {"decay": self._decay, "share": self._share}
        return own | super()._configured()

    @property
    def current_decay(self) -> float:
        """The decay of the latest step; before any step, that of the first.

        0 as long as the average has not begun (``start``).
        """
        if self._began is None:
            return 0.0
        counters = self._counters
        n = max(counters.steps - self._first, 0)
        return self._decay(n, counters.steps_per_epoch)

    def _between_averages(self) -> None:
        if self._began is None:
            self._begin_if_reached()

    def _derive(self, index: int, live: Tensor, average: Tensor) -> Tensor:
        return torch.lerp(live, average, self._share)
