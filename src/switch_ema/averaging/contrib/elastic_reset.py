"""Elastic Reset (Noukhovitch et al., 2023)."""

import torch
from torch import nn

from switch_ema.averaging.methods.switch_ema import SwitchEMA
from switch_ema.averaging.model.slots import Filter
from switch_ema.averaging.schedules.decay import constant
from switch_ema.averaging.schedules.intervals import ScheduleLike, Steps
from switch_ema.averaging.schedules.spelling import DecayLike
from switch_ema.averaging.shadow.shadow import Shadow
from switch_ema.averaging.shadow.storage import Buffers
from switch_ema.averaging.step.hooks import Optimizers, OptimizerState
from switch_ema.averaging.step.rounds import Count

DEFAULT_DECAY = constant(0.995)
DEFAULT_EVERY = Steps(260)


class ElasticReset(SwitchEMA):
    """Switch like Switch EMA, then reset the shadow to the initial weights.

    ``live = shadow; shadow = initial``: the average pulls towards the initial weights,
    which keeps a fine-tuned model near them. Since the shadow is not a model to
    evaluate, ``averaged()`` shows and saves the live weights.

    Args:
        model: see :class:`Averager`.
        optimizer: see :class:`Averager`.
        decay: the weight of the old shadow, as for :class:`SwitchEMA`.
        update_every: average only every k-th step, with ``d ** k``.
        switch_every: epochs between two resets, ``Steps(n)``, or a callable of the
            number of finished epochs.
        switch_start: resets start after this, in the unit of ``switch_every``.
        switch_stop: resets stop after this.
        live_share: ``b`` in [0, 1) for ``live = b * live + (1 - b) * shadow``.
        optimizer_state: "keep" or "reset" the optimizer's moments at a reset.
        buffers: average "statistics", or "average" or "copy" all float buffers.
        dtype: the dtype of averaged parameters; None: the model's, at least float32.
        device: the device of the shadow; None: the model's.
        include: names, globs or a predicate: average only these tensors.
        exclude: names, globs or a predicate: do not average these tensors.
        flat: move the model into one block of memory for the fastest update.
        steps_per_epoch: steps per epoch, if needed before the first epoch ends.
        count: which steps count if there are several optimizers.

    >>> elastic = ElasticReset(nn.Linear(1, 1), decay=0.5, switch_every=Steps(2))
    >>> for _ in range(4):
    ...     elastic.update()
    >>> elastic.switches
    2
    """

    name = "elastic-reset"
    display_name = "Elastic Reset"
    colour = 2

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizers = None,
        *,
        decay: DecayLike = DEFAULT_DECAY,
        update_every: int = 1,
        switch_every: ScheduleLike = DEFAULT_EVERY,
        switch_start: float = 0,
        switch_stop: float | None = None,
        live_share: float = 0.0,
        optimizer_state: OptimizerState = "keep",
        buffers: Buffers = "statistics",
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        include: Filter = None,
        exclude: Filter = None,
        flat: bool = False,
        steps_per_epoch: int | None = None,
        count: Count = "round",
    ) -> None:
        super().__init__(
            model,
            optimizer,
            decay=decay,
            update_every=update_every,
            switch_every=switch_every,
            switch_start=switch_start,
            switch_stop=switch_stop,
            live_share=live_share,
            optimizer_state=optimizer_state,
            buffers=buffers,
            dtype=dtype,
            device=device,
            include=include,
            exclude=exclude,
            flat=flat,
            steps_per_epoch=steps_per_epoch,
            count=count,
        )
        self._initial = self._new_shadow()

    @property
    def has_average(self) -> bool:
        """False: the shadow restarts at the initial weights; live ones are shown."""
        return False

    def _switch(self) -> None:
        super()._switch()
        self._shadow.copy_(self._initial)

    def _shadows(self) -> dict[str, Shadow]:
        return {"shadow": self._shadow, "shadow_initial": self._initial}
