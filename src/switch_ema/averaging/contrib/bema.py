"""BEMA: an EMA corrected for its lag (Block and Zhang, 2025)."""

import torch
from torch import Tensor, nn

from switch_ema._checks import check_count, check_positive
from switch_ema.averaging.contrib.derived import Derived
from switch_ema.averaging.model.slots import Filter
from switch_ema.averaging.shadow.shadow import Shadow
from switch_ema.averaging.shadow.storage import Buffers
from switch_ema.averaging.step.hooks import Optimizers
from switch_ema.averaging.step.rounds import Count


class BEMA(Derived):
    """EMA with its lag corrected by the displacement from the initial weights.

    At the t-th step, with ``age = rho + gamma * t``::

        average += age ** -kappa * (live - average)
        shadow   = average + age ** -eta * (live - initial)

    The second term compensates the lag of the average behind the live weights.

    Args:
        model: see :class:`Averager`.
        optimizer: see :class:`Averager`.
        kappa: exponent of the newest weights' share, which falls with the steps.
        eta: exponent of the correction, which falls with the steps.
        rho: the initial age, at least 1.
        gamma: growth of the age per step.
        update_every: average only every k-th step, with ``(1 - weight) ** k``.
        buffers: average "statistics", or "average" or "copy" all float buffers.
        dtype: the dtype of averaged parameters; None: the model's, at least float32.
        device: the device of the shadow; None: the model's.
        include: names, globs or a predicate: average only these tensors.
        exclude: names, globs or a predicate: do not average these tensors.
        flat: move the model into one block of memory for the fastest update.
        steps_per_epoch: steps per epoch, if needed before the first epoch ends.
        count: which steps count if there are several optimizers.

    >>> bema = BEMA(nn.Linear(1, 1))
    >>> bema.update()
    >>> round(1 - bema.current_decay, 3)  # 11 ** -0.5
    0.302
    """

    name = "bema"
    display_name = "BEMA"
    colour = 7

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizers = None,
        *,
        kappa: float = 0.5,
        eta: float = 0.2,
        rho: float = 10.0,
        gamma: float = 1.0,
        update_every: int = 1,
        buffers: Buffers = "statistics",
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        include: Filter = None,
        exclude: Filter = None,
        flat: bool = False,
        steps_per_epoch: int | None = None,
        count: Count = "round",
    ) -> None:
        self._kappa = check_positive("kappa", kappa)
        self._eta = check_positive("eta", eta)
        self._gamma = check_positive("gamma", gamma)
        if not check_positive("rho", rho) >= 1:
            raise ValueError(f"rho must be at least 1, got {rho!r}.")
        self._rho = rho
        self._update_every = check_count("update_every", update_every)
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
        self._initial = self._new_shadow()

    @property
    def current_decay(self) -> float:
        """The weight of the old average in the latest step."""
        return 1 - float(self._age**-self._kappa)

    @property
    def _age(self) -> float:
        return self._rho + self._gamma * max(self.steps, 1)

    def _derive(self, index: int, live: Tensor, average: Tensor) -> Tensor:
        way = live - self._initial.tensors[index]
        return average + float(self._age**-self._eta) * way

    def _shadows(self) -> dict[str, Shadow]:
        return super()._shadows() | {"shadow_initial": self._initial}
