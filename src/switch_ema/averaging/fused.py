"""Optimizers that average the weights while they are still in the cache.

A step of AdamW reads and writes 28 bytes per parameter; an average afterwards adds 12,
4 of them to read the weights that were written a moment ago. These optimizers go
through the parameters in blocks that fit into the cache and average each block right
after its step: 8 bytes per parameter come on top, and no second sweep.

They are torch's own optimizers in everything else: arguments, state dicts, numbers.

    optimizer = FusedAdamW(model.parameters(), lr=1e-3)
    sema = SwitchEMA(model, optimizer)     # notices that the optimizer averages
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer

from switch_ema.averaging.blocks import StepAverage, Work, step_and_average
from switch_ema.averaging.hooks import was_skipped
from switch_ema.averaging.sharded import is_sharded

Closure = Callable[[], Any]


class AveragesInStep(Optimizer):
    """An optimizer whose step can average what it updates."""

    _next_average: Callable[[], StepAverage | None] | None = None

    def average_with(self, ask: Callable[[], StepAverage | None] | None) -> bool:
        """Ask before each step what to average in it; None ends that.

        Returns:
            Whether it will: only one can be asked.
        """
        is_free = self._next_average is None or ask is None
        if is_free:
            self._next_average = ask
        return is_free

    def _work(self, group: dict[str, Any]) -> list[Work]:
        """Collect what the kernel of a parameter group works on."""
        raise NotImplementedError

    def _step(self, torch_step: Callable[..., Any], closure: Closure | None) -> Any:
        """Step in blocks; where nothing can be averaged in the step, as torch does."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        average = self._average()
        if average is None:
            # Undecorated: the hooks of this step run around it already.
            getattr(torch_step, "__wrapped__", torch_step)(self)
            return loss
        with torch.no_grad():
            for group in self.param_groups:
                for work in self._work(group):
                    step_and_average(work, average)
            average.finish()
        return loss

    def _average(self) -> StepAverage | None:
        if self._next_average is None or was_skipped(self):
            return None
        if not all(map(_is_simple, self.param_groups)):
            return None
        return self._next_average()

    def _scaling(self) -> dict[str, Any]:
        """Return what a GradScaler has left for the kernel."""
        return {
            "grad_scale": getattr(self, "grad_scale", None),
            "found_inf": getattr(self, "found_inf", None),
        }


def _is_simple(group: dict[str, Any]) -> bool:
    return bool(group["fused"]) and all(
        parameter.is_cpu
        and not is_sharded(parameter)
        and parameter.is_floating_point()
        and (parameter.grad is None or not parameter.grad.is_sparse)
        for parameter in group["params"]
    )


class FusedSGD(AveragesInStep, SGD):
    """SGD, also with momentum or Nesterov's; see :class:`torch.optim.SGD`."""

    def __init__(self, *args: Any, fused: bool = True, **options: Any) -> None:
        super().__init__(*args, fused=fused, **options)

    def step(self, closure: Closure | None = None) -> Any:
        """Update the weights, and the average with them."""
        return self._step(SGD.step, closure)

    def _work(self, group: dict[str, Any]) -> list[Work]:
        params: list[Tensor] = []
        grads: list[Tensor] = []
        buffers: list[Tensor | None] = []
        self._init_group(group, params, grads, buffers)  # type: ignore[no-untyped-call]
        if not group["momentum"]:
            return [self._part(group, [params, grads], is_first=False)]
        work = []
        # A buffer that begins takes the gradient as it is, without dampening.
        for is_first in (True, False):
            rows = [i for i, b in enumerate(buffers) if (b is None) is is_first]
            columns: list[list[Tensor]] = [[], [], []]
            for i in rows:
                state = self.state[params[i]]
                if is_first:
                    state["momentum_buffer"] = torch.empty_like(params[i])
                row = params[i], grads[i], state["momentum_buffer"]
                for column, tensor in zip(columns, row, strict=True):
                    column.append(tensor)
            work.append(self._part(group, columns, is_first))
        return work

    def _part(
        self, group: dict[str, Any], columns: list[list[Tensor]], is_first: bool
    ) -> Work:
        keys = ("weight_decay", "momentum", "lr", "dampening", "nesterov", "maximize")
        options = {key: group[key] for key in keys} | self._scaling()

        def kernel(columns: list[list[Tensor]], steps: list[Tensor]) -> None:
            params, grads, *buffers = columns
            momenta = buffers[0] if buffers else []
            torch._fused_sgd_(params, grads, momenta, is_first_step=is_first, **options)

        return Work(columns, kernel)


class FusedAdam(AveragesInStep, Adam):
    """Adam; see :class:`torch.optim.Adam`."""

    def __init__(self, *args: Any, fused: bool = True, **options: Any) -> None:
        super().__init__(*args, fused=fused, **options)

    def step(self, closure: Closure | None = None) -> Any:
        """Update the weights, and the average with them."""
        return self._step(Adam.step, closure)

    def _work(self, group: dict[str, Any]) -> list[Work]:
        columns: list[list[Tensor]] = [[] for _ in range(6)]
        self._init_group(group, *columns)  # type: ignore[no-untyped-call]
        *columns, steps = columns
        if not group["amsgrad"]:
            columns.pop()
        if steps:
            torch._foreach_add_(steps, 1)
        decoupled = group.get("decoupled_weight_decay", False)
        function = torch._fused_adamw_ if decoupled else torch._fused_adam_
        keys = ("amsgrad", "lr", "weight_decay", "eps", "maximize")
        options = {key: group[key] for key in keys} | self._scaling()
        options["beta1"], options["beta2"] = map(float, group["betas"])

        def kernel(columns: list[list[Tensor]], steps: list[Tensor]) -> None:
            params, grads, means, squares, *rest = columns
            largest = rest[0] if rest else []
            function(params, grads, means, squares, largest, steps, **options)

        return [Work(columns, kernel, steps)]


class FusedAdamW(FusedAdam, AdamW):
    """AdamW; see :class:`torch.optim.AdamW`."""
