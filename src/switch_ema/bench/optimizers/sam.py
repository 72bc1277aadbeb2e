"""SAM: sharpness-aware minimisation (Foret et al., 2021)."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from switch_ema._checks import check_range


class SAM(Optimizer):
    """Sharpness-aware minimisation around another optimizer (Foret et al., 2021).

    With the gradient ``g`` at the weights ``w``::

        first_step:   v = w + rho * g / |g|                  the worst point nearby
        second_step:  w = base step from w with the gradient at v

    or, if adaptive, ``v = w + rho * w**2 * g / |w * g|`` (Kwon et al., 2021). Shares
    parameter groups and state with the base, so schedules and checkpoints work
    unchanged. Step hooks run once, at the end of the second step.
    """

    def __init__(
        self, base: Optimizer, *, rho: float = 0.05, adaptive: bool = False
    ) -> None:
        self.rho = check_range("rho", rho, 0, math.inf)
        self.adaptive = adaptive
        self.base = base
        self._saved: list[tuple[Tensor, Tensor]] = []
        self._has_climbed = False
        super().__init__(base.param_groups, base.defaults)
        self._share()

    @torch.no_grad()
    def first_step(self) -> None:
        """Move to the worst point nearby, where the gradients are needed."""
        if self._saved:
            raise RuntimeError("first_step() was called twice; call second_step().")
        params = [p for group in self.param_groups for p in group["params"]]
        params = [p for p in params if p.grad is not None]
        slopes = [p.grad * p.abs() if self.adaptive else p.grad for p in params]
        norm = nn.utils.get_total_norm(slopes)
        self._saved = [(p, p.clone()) for p in params]
        self._has_climbed = True
        for p, slope in zip(params, slopes, strict=True):
            ascent = slope * (self.rho / (norm + 1e-12)).to(p.device)
            p.add_(ascent * p.abs() if self.adaptive else ascent)

    def second_step(self) -> None:
        """Go back, and step with the gradients of the worst point."""
        self.restore()  # first: pre-step hooks must see the weights
        self.step()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Finish the step, or do all of it with a closure that computes gradients."""
        loss = None if closure is None else self._climb(closure)
        if not self._has_climbed:
            raise RuntimeError("call first_step() first, or pass a closure to step().")
        self.restore()
        self.base.step()
        self._has_climbed = False
        return loss

    @torch.no_grad()
    def restore(self) -> None:
        """Go back to the weights before ``first_step``, if not yet done."""
        for p, before in self._saved:
            p.copy_(before)
        self._saved = []

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the base."""
        return self.base.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the state of the base."""
        self.base.load_state_dict(state_dict)
        self._share()

    def _share(self) -> None:
        self.param_groups, self.state = self.base.param_groups, self.base.state

    def _climb(self, closure: Callable[[], Any]) -> Any:
        with torch.enable_grad():
            loss = closure()
            self.first_step()
            self.zero_grad()
            try:
                closure()
            finally:
                self.restore()
        return loss
