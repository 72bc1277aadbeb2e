"""Lookahead whose outer step has Nesterov momentum: Snoo, single-worker DiLoCo."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from switch_ema._checks import check_count, check_positive, check_range
from switch_ema.averaging.averager import Averager
from switch_ema.averaging.model.slots import Filter
from switch_ema.averaging.shadow.shadow import Shadow
from switch_ema.averaging.shadow.storage import Buffers
from switch_ema.averaging.step.hooks import (
    Optimizers,
    OptimizerState,
    check_optimizer_state,
)
from switch_ema.averaging.step.rounds import Count


class Snoo(Averager):
    """Every k steps take a Nesterov step towards the fast weights and restart there.

    With slow weights ``p`` and fast ones ``w`` after k steps, the difference
    ``g = p - w`` is the gradient of an outer SGD with Nesterov momentum::

        v = momentum * v + g;    p -= alpha * (g + momentum * v);    w = p

    A momentum of 0 is Lookahead. Kallusky et al. (2025) call it Snoo; it is DiLoCo
    (Douillard et al., 2023) with one worker, which uses alpha 0.7 and momentum 0.9. The
    code stores ``y``, the last weights before the momentum, instead of ``v``:
    ``y' = p + alpha * (w - p); p = y' + momentum * (y' - y)``.

    Args:
        model: see :class:`Averager`.
        optimizer: see :class:`Averager`.
        k: steps between outer steps.
        alpha: the outer learning rate.
        momentum: the momentum of the outer step, in [0, 1).
        optimizer_state: "keep" or "reset" the moments at an outer step.
        buffers: average "statistics", or "average" or "copy" all float buffers.
        dtype: the dtype of averaged parameters; None: the model's, at least float32.
        device: the device of the shadow; None: the model's.
        include: names, globs or a predicate: average only these tensors.
        exclude: names, globs or a predicate: do not average these tensors.
        flat: move the model into one block of memory for the fastest update.
        steps_per_epoch: steps per epoch, if needed before the first epoch ends.
        count: which steps count if there are several optimizers.

    >>> snoo = Snoo(nn.Linear(1, 1), k=2)
    >>> for _ in range(4):
    ...     snoo.update()
    >>> snoo.switches
    2
    """

    name = "snoo"
    display_name = "Snoo"
    colour = 4
    active = True

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizers = None,
        *,
        k: int = 28,
        alpha: float = 0.7,
        momentum: float = 0.4,
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
        self._alpha = check_positive("alpha", alpha)
        self._momentum = check_range("momentum", momentum, 0, 1)
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
        self._before_momentum = self._new_shadow()

    @property
    def current_decay(self) -> float:
        """The weight of the old slow weights before the momentum, ``1 - alpha``."""
        return 1 - self._alpha

    def load_average(
        self,
        weights: Mapping[str, torch.Tensor],
        *,
        steps: int = 0,
        epochs: int = 0,
        **extra: Any,
    ) -> None:
        """Load slow weights, with zero velocity.

        Args:
            weights: slow weights by plain name; missing ones keep their values.
            steps: optimizer steps it has seen; a warm-up continues from there.
            epochs: epochs it has seen.
            extra: other counters of the method.
        """
        super().load_average(weights, steps=steps, epochs=epochs, **extra)
        self._before_momentum.copy_(self._shadow)

    def _shadows(self) -> dict[str, Shadow]:
        return {"shadow": self._shadow, "shadow_before_momentum": self._before_momentum}

    def _after_step(self) -> None:
        if self.steps % self._k == 0:
            self._shadow.average_(self._alpha, self.steps)
            self._add_momentum()
            self._write_live(reset_optimizer=self._resets)

    @torch.no_grad()
    def _add_momentum(self) -> None:
        self._shadow.settle()
        for i in self._shadow.averaged_parameters:
            slow, before = self._shadow.tensors[i], self._before_momentum.tensors[i]
            moved = slow - before
            before.copy_(slow)
            slow.add_(moved, alpha=self._momentum)
