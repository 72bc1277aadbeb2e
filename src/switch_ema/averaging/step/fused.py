"""Optimizers that average the weights in the same pass over memory.

A step of AdamW reads and writes 28 bytes per parameter; an average afterwards adds 12,
4 of them to read the weights that were written a moment ago. These optimizers do both
in one loop: written in C for the CPU, by torch.compile for other devices. Where neither
can be, blocks of parameters are averaged while they are in the cache.

They are torch's own optimizers in everything else: arguments, state dicts, numbers.

    optimizer = FusedAdamW(model.parameters(), lr=1e-3)
    sema = SwitchEMA(model, optimizer)     # notices that the optimizer averages
"""

import functools
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from itertools import chain, compress
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer

from switch_ema.averaging._torch import init_group, without_hooks
from switch_ema.averaging.kernels import native
from switch_ema.averaging.kernels.torch_ops import (
    PLAIN_TYPES,
    Columns,
    adam_step_,
    sgd_step_,
)
from switch_ema.averaging.step.blocks import (
    StepAverage,
    Work,
    in_order_of,
    step_and_average,
)
from switch_ema.averaging.step.formulas import adam_formula, sgd_formula
from switch_ema.averaging.step.hooks import outside_of_graphs, was_skipped
from switch_ema.averaging.step.native_step import NativeStep
from switch_ema.averaging.step.one_pass import OnePass

Closure = Callable[[], Any]


class AveragesInStep(Optimizer, ABC):
    """An optimizer of torch's whose step can average what it updates.

    Args:
        args: the arguments of torch's optimizer.
        compile: have torch.compile write the pass where the kernels in C cannot run,
            as on a GPU; it takes up to a minute at the first step. Otherwise weights
            that are not on the CPU are averaged after the step.
        fused: False steps as torch does and averages afterwards.
        options: further arguments of torch's optimizer.
    """

    def __init__(
        self,
        *args: Any,
        compile: bool = False,
        fused: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options | {"fused": fused})
        self._next_average: Callable[[], StepAverage | None] | None = None
        self._one_pass = OnePass(compile)
        self._in_c = NativeStep()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Complete a copy, since torch copies only the attributes that it knows."""
        super().__setstate__(state)
        self.__dict__.setdefault("_next_average", None)
        self.__dict__.setdefault("_one_pass", OnePass(compiles=False))
        self.__dict__.setdefault("_in_c", NativeStep())

    def average_with(self, ask: Callable[[], StepAverage | None] | None) -> bool:
        """Ask before each step what to average in it; None ends that.

        Returns:
            Whether it will: only one can be asked.
        """
        is_free = self._next_average is None or ask is None
        if is_free:
            self._next_average = ask
            self._in_c = NativeStep()  # what it remembers keeps a shadow alive
        return is_free

    @abstractmethod
    def _work(self, group: dict[str, Any]) -> list[Work]:
        """Collect what the kernel of a parameter group works on."""

    def step(self, closure: Closure | None = None) -> Any:
        """Update the weights, and the average with them.

        Where nothing can be averaged in the step, as torch does. In a compiled step,
        it runs as it is, which is faster.
        """
        return outside_of_graphs(self._step, closure)

    def _step(self, closure: Closure | None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        average = self._average()
        if average is None:
            without_hooks(super().step)()
            return loss
        with torch.no_grad():
            groups = map(self._work, self.param_groups)
            for place, work in enumerate(chain.from_iterable(groups)):
                self._do(work, average, place)
            average.finish()
        return loss

    def _do(self, work: Work, average: StepAverage, place: int) -> None:
        """Do the work by the best way that is open to each parameter."""
        left = self._in_c.run(work, average, place)
        if left is not None:
            left = self._one_pass.run(left, average)
        if left is not None:
            step_and_average(left, average)

    def _average(self) -> StepAverage | None:
        if self._next_average is None or was_skipped(self):
            return None
        if not all(map(self._is_simple, self.param_groups)):
            return None
        if not (native.is_available() or self._one_pass.was_asked_for):
            _say_that_there_is_no_compiler()
        return self._next_average()

    def _is_simple(self, group: dict[str, Any]) -> bool:
        """Whether all parameters are such that they can be averaged in the step."""
        return bool(group["fused"]) and all(
            type(parameter) in PLAIN_TYPES
            and parameter.is_floating_point()
            and (parameter.is_cpu or self._one_pass.compiles)
            for parameter in group["params"]
        )

    def _scaling(self) -> dict[str, Any]:
        """Return what a GradScaler has left for the kernel."""
        return {
            "grad_scale": getattr(self, "grad_scale", None),
            "found_inf": getattr(self, "found_inf", None),
        }


def _is_unscaled(options: dict[str, Any]) -> bool:
    return options["grad_scale"] is None and options["found_inf"] is None


@functools.cache
def _say_that_there_is_no_compiler() -> None:
    if not native.is_switched_off():
        warnings.warn(
            "No C compiler works here (cc, gcc or $CC), so weights are averaged block "
            "by block after their step, which takes longer.",
            stacklevel=4,
        )


class FusedSGD(AveragesInStep, SGD):
    """:class:`torch.optim.SGD`, averaging in its step; momentum included.

    Args:
        args: the arguments of torch's optimizer.
        compile: have torch.compile write the pass where the kernels in C cannot run,
            as on a GPU.
        fused: False steps as torch does and averages afterwards.
        options: further arguments of torch's optimizer.
    """

    def _work(self, group: dict[str, Any]) -> list[Work]:
        params: list[Tensor] = []
        grads: list[Tensor] = []
        momenta: list[Tensor | None] = []
        init_group(self, group, params, grads, momenta)
        columns = [params, in_order_of(params, grads)]
        known = [momentum for momentum in momenta if momentum is not None]
        if not group["momentum"]:
            return [self._part(group, columns, is_first=False)]
        if len(known) == len(params):
            return [self._part(group, [*columns, known], is_first=False)]
        # A momentum that begins takes the gradient as it is, without dampening.
        firsts = [momentum is None for momentum in momenta]
        columns.append([self._momentum(parameter) for parameter in params])
        return [
            self._part(
                group,
                [list(compress(column, rows)) for column in columns],
                is_first,
            )
            for is_first, rows in ((True, firsts), (False, [not f for f in firsts]))
        ]

    def _momentum(self, parameter: Tensor) -> Tensor:
        state = self.state[parameter]
        if state.get("momentum_buffer") is None:
            state["momentum_buffer"] = torch.empty_like(parameter)
        momentum: Tensor = state["momentum_buffer"]
        return momentum

    def _part(
        self, group: dict[str, Any], columns: list[list[Tensor]], is_first: bool
    ) -> Work:
        keys = ("weight_decay", "momentum", "lr", "dampening", "nesterov", "maximize")
        options = {key: group[key] for key in keys} | self._scaling()

        def kernel(columns: list[list[Tensor]], steps: list[Tensor]) -> None:
            params, grads, *buffers = columns
            momenta = buffers[0] if buffers else []
            sgd_step_(params, grads, momenta, is_first_step=is_first, **options)

        is_plain = not is_first and _is_unscaled(options)
        return Work(columns, kernel, formula=sgd_formula(group) if is_plain else None)


class FusedAdam(AveragesInStep, Adam):
    """:class:`torch.optim.Adam`, averaging in its step.

    Args:
        args: the arguments of torch's optimizer.
        compile: have torch.compile write the pass where the kernels in C cannot run,
            as on a GPU.
        fused: False steps as torch does and averages afterwards.
        options: further arguments of torch's optimizer.
    """

    def _work(self, group: dict[str, Any]) -> list[Work]:
        *columns, steps = self._columns(group)
        columns[1] = in_order_of(columns[0], columns[1])
        decoupled = group.get("decoupled_weight_decay", False)
        keys = ("amsgrad", "lr", "weight_decay", "eps", "maximize")
        options = {key: group[key] for key in keys} | self._scaling()
        options["beta1"], options["beta2"] = map(float, group["betas"])
        kernel = partial(adam_step_, decoupled=decoupled, **options)
        is_plain = not group["amsgrad"] and _is_unscaled(options)
        formula = adam_formula(group, decoupled) if is_plain else None
        return [Work(columns, kernel, steps, formula)]

    def _columns(self, group: dict[str, Any]) -> Columns:
        """Collect parameters, gradients, state and steps.

        As torch does at the first step; later ones need none of its checks, which take
        as long as a tenth of the kernel.
        """
        names = ["exp_avg", "exp_avg_sq", "max_exp_avg_sq"][: 2 + group["amsgrad"]]
        pairs = [(p, p.grad) for p in group["params"]]
        params = [parameter for parameter, grad in pairs if grad is not None]
        states = [self.state[parameter] for parameter in params]
        if not all(states):
            columns: Columns = [[] for _ in range(6)]
            init_group(self, group, *columns)
            return [*columns[: 2 + len(names)], columns[-1]]
        grads = [grad for _, grad in pairs if grad is not None]
        kept = [[state[name] for state in states] for name in (*names, "step")]
        return [params, grads, *kept]


class FusedAdamW(FusedAdam, AdamW):
    """:class:`torch.optim.AdamW`, averaging in its step.

    Args:
        args: the arguments of torch's optimizer.
        compile: have torch.compile write the pass where the kernels in C cannot run,
            as on a GPU.
        fused: False steps as torch does and averages afterwards.
        options: further arguments of torch's optimizer.
    """
