"""A pull towards the average at every step, by coordinate: PACE (Au and Block, 2026).

The paper: https://arxiv.org/abs/2606.25086.
"""

from typing import Any

import torch
from torch import Tensor, nn

from switch_ema._checks import check_positive
from switch_ema.averaging.averager import Averager
from switch_ema.averaging.distributed.fsdp import local_part
from switch_ema.averaging.model.slots import Filter
from switch_ema.averaging.shadow.shadow import Shadow
from switch_ema.averaging.shadow.storage import Buffers
from switch_ema.averaging.step.hooks import Optimizers
from switch_ema.averaging.step.rounds import Count

_LEAST_WEIGHT = 1e-4


class PACE(Averager):
    """Pull every live weight a little towards its average, at every step.

    With ``w`` before the t-th step, ``w'`` after the optimizer's part of it, and the
    second moment ``v`` of Adam, corrected for its bias::

        weight = max((1 + t) ** -kappa, 1e-4)
        pull   = min(1, lr * strength * weight / (sqrt(v) + eps))     by coordinate
        live   = w' + pull * (shadow - w)
        shadow += weight * (live - shadow)

    With an optimizer without a second moment, such as SGD, ``pull = min(1, lr *
    strength * weight)`` for all coordinates. PACE keeps a copy of the weights before
    each step.

    Args:
        model: see :class:`Averager`.
        optimizer: see :class:`Averager`.
        strength: ``c``, the strength of the pull.
        kappa: exponent of the newest weights' share, which falls with the steps.
        rate: the learning rate in the pull; None: that of the optimizer's groups.
        buffers: average "statistics", or "average" or "copy" all float buffers.
        dtype: the dtype of averaged parameters; None: the model's, at least float32.
        device: the device of the shadow; None: the model's.
        include: names, globs or a predicate: average only these tensors.
        exclude: names, globs or a predicate: do not average these tensors.
        flat: move the model into one block of memory for the fastest update.
        steps_per_epoch: steps per epoch, if needed before the first epoch ends.
        count: which steps count if there are several optimizers.

    >>> model = nn.Linear(1, 1)
    >>> optimizer = torch.optim.AdamW(model.parameters())
    >>> pace = PACE(model, optimizer)
    >>> model(torch.ones(1, 1)).sum().backward()
    >>> optimizer.step()
    >>> pace.switches
    1
    """

    name = "pace"
    display_name = "PACE"
    colour = 9
    active = True

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizers = None,
        *,
        strength: float = 0.15,
        kappa: float = 0.2,
        rate: float | None = None,
        buffers: Buffers = "statistics",
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        include: Filter = None,
        exclude: Filter = None,
        flat: bool = False,
        steps_per_epoch: int | None = None,
        count: Count = "round",
    ) -> None:
        self._strength = check_positive("strength", strength)
        self._kappa = check_positive("kappa", kappa)
        self._rate = None if rate is None else check_positive("rate", rate)
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
        self._before = self._new_shadow()

    @property
    def current_decay(self) -> float:
        """The weight of the old shadow in the latest step."""
        return 1 - self._weight

    @property
    def _weight(self) -> float:
        return max(float((1 + max(self.steps, 1)) ** -self._kappa), _LEAST_WEIGHT)

    def _shadows(self) -> dict[str, Shadow]:
        return {"shadow": self._shadow, "shadow_before": self._before}

    def _after_step(self) -> None:
        self._pull()
        self._shadow.average_(self._weight, self.steps)
        self._before.read_()
        self._counters.switches += 1

    @torch.no_grad()
    def _pull(self) -> None:
        self._shadow.settle()
        settings = self._settings()
        for i in self._shadow.averaged_parameters:
            slot, shadow = self._shadow.slots[i], self._shadow.tensors[i]
            rate, root = settings.get(id(slot.tensor), (self._rate, None))
            if rate is None:
                raise RuntimeError(
                    f"PACE has no learning rate for {slot.name}; pass the optimizer "
                    "or rate=..."
                )
            pull: Any = rate * self._strength * self._weight
            if root is not None:
                pull = (pull / root.to(shadow.device, shadow.dtype)).clamp_(max=1)
            else:
                pull = min(pull, 1.0)
            moved = (shadow - self._before.tensors[i]) * pull
            slot.local.add_(moved.to(slot.local.device, slot.local.dtype))

    def _settings(self) -> dict[int, tuple[float, Tensor | None]]:
        """Return each parameter's learning rate and ``sqrt(v) + eps``."""
        found: dict[int, tuple[float, Tensor | None]] = {}
        for optimizer in self._hook.optimizers if self._hook else ():
            for group in optimizer.param_groups:
                rate = float(group["lr"]) if self._rate is None else self._rate
                for parameter in group["params"]:
                    root = _root(optimizer.state.get(parameter, {}), group)
                    found[id(parameter)] = rate, root
        return found


def _root(state: dict[str, Any], group: dict[str, Any]) -> Tensor | None:
    if "exp_avg_sq" not in state or "betas" not in group:
        return None
    bias = 1 - group["betas"][1] ** float(state["step"])
    second: Tensor = local_part(state["exp_avg_sq"])
    root: Tensor = (second / bias).sqrt_().add_(group["eps"])
    return root
