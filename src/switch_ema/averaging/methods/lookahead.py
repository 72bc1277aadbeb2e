"""Lookahead: k steps forward, one step back (Zhang et al., 2019)."""

import torch
from torch import nn

from switch_ema._checks import check_count
from switch_ema.averaging.averager import Averager
from switch_ema.averaging.model.slots import Filter
from switch_ema.averaging.shadow.storage import Buffers
from switch_ema.averaging.step.hooks import (
    Optimizers,
    OptimizerState,
    check_optimizer_state,
)
from switch_ema.averaging.step.rounds import Count


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
        buffers: average "statistics", or "average" or "copy" all float buffers.
        dtype: the dtype of averaged parameters; None: the model's, at least float32.
        device: the device of the shadow; None: the model's.
        include: names, globs or a predicate: average only these tensors.
        exclude: names, globs or a predicate: do not average these tensors.
        flat: move the model into one block of memory for the fastest update.
        steps_per_epoch: steps per epoch, if needed before the first epoch ends.
        count: which steps count if there are several optimizers.

    >>> lookahead = Lookahead(nn.Linear(1, 1), k=2)
    >>> for _ in range(4):
    ...     lookahead.update()
    >>> lookahead.switches
    2
    """

    name = "lookahead"
    display_name = "Lookahead"
    colour = 4
    active = True

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizers = None,
        *,
        k: int = 5,
        alpha: float = 0.5,
        optimizer_state: OptimizerState = "keep",
        buffers: Buffers = "copy",
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        include: Filter = None,
        exclude: Filter = None,
        flat: bool = False,
        steps_per_epoch: int | None = None,
        count: Count = "round",
    ) -> None:
        self._k = check_count("k", k)
        if not 0 < alpha <= 1:
            raise ValueError(f"alpha must be in (0, 1], got {alpha!r}.")
        self._alpha = alpha
        self._resets = check_optimizer_state(optimizer_state, optimizer)
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

    @property
    def current_decay(self) -> float:
        """The weight of the old slow weights, ``1 - alpha``."""
        return 1 - self._alpha

    def _after_step(self) -> None:
        if self.steps % self._k == 0:
            self._shadow.average_(self._alpha, self.steps)
            self._write_live(reset_optimizer=self._resets)
