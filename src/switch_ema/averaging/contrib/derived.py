"""Base of methods that show a combination of an average and the live weights.

The shadow is the combination; the average is kept beside it.
"""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from switch_ema.averaging.averager import Averager
from switch_ema.averaging.schedules.decay import merged_weight
from switch_ema.averaging.shadow.shadow import Shadow


class Derived(Averager):
    """Averages exponentially and shows what :meth:`_derive` returns."""

    _update_every: int

    def _keep_average(self) -> None:
        """Start the average; a method calls this at the end of its ``__init__``.

        It copies the shadow, so both start at the same weights.
        """
        self._average = self._new_shadow()

    @abstractmethod
    def _derive(self, index: int, live: Tensor, average: Tensor) -> Tensor:
        """Return the combination for one parameter as a new tensor."""

    def load_average(
        self,
        weights: Mapping[str, torch.Tensor],
        *,
        steps: int = 0,
        epochs: int = 0,
        **extra: Any,
    ) -> None:
        """Load an average; see :class:`Averager`."""
        super().load_average(weights, steps=steps, epochs=epochs, **extra)
        self._average.copy_(self._shadow)

    def _shadows(self) -> dict[str, Shadow]:
        return {"shadow": self._shadow, "shadow_average": self._average}

    def _after_step(self) -> None:
        updates, rest = divmod(self.steps, self._update_every)
        if rest:
            self._between_averages()
            return
        weight = 1 - self.current_decay**self._update_every
        self._average.average_(merged_weight(weight, updates), self.steps)
        self._show()

    def _between_averages(self) -> None:
        """React to a step that is not averaged."""
        return None  # most methods do nothing

    @torch.no_grad()
    def _show(self) -> None:
        shadow, average = self._shadow, self._average
        average.settle()
        shadow.read_()
        for i in shadow.averaged_parameters:
            shown = shadow.tensors[i]
            # A cast of a part of the model is followed by each shadow in its own time.
            shown.copy_(self._derive(i, shown, average.tensors[i].to(shown)))
        for i in shadow.averaged_buffers:
            shadow.tensors[i].copy_(average.tensors[i])
