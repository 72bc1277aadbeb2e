"""Hooks on ``optimizer.step``, so that no call to ``update`` can be forgotten."""

import functools
import sys
import warnings
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Literal, Union

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.hooks import RemovableHandle

from switch_ema._checks import check_choice
from switch_ema.averaging import _torch

Optimizers = Union[Optimizer, Iterable[Optimizer], None]
"""None, one or several."""


OptimizerState = Literal["keep", "reset"]
"""What is done with the optimizer's moments when the live weights are written."""


def check_optimizer_state(policy: OptimizerState, optimizer: Optimizers) -> bool:
    """Check the argument optimizer_state; return whether it asks for a reset."""
    check_choice("optimizer_state", policy, ("keep", "reset"))
    if policy == "reset" and optimizer is None:
        raise ValueError(
            "optimizer_state='reset' needs the optimizer; pass it as second argument."
        )
    return policy == "reset"


class StepHook:
    """Calls back once for each round of real steps of the given optimizers.

    With one optimizer a round is a step. With several it is complete when each has
    stepped at least once: one update for a body and a head that step in turn.

    The optimizers hold what is called back, and are held weakly here: without a cycle,
    a training that nobody holds any more frees its memory at once.
    """

    def __init__(
        self,
        optimizers: list[Optimizer],
        before_step: Callable[[], None],
        after_round: Callable[[], None],
    ) -> None:
        self.waiting_for = set(range(len(optimizers)))
        self._optimizers: list[weakref.ref[Any]] = [*map(weakref.ref, optimizers)]
        # Ids alone: torch casts no sharded parameter that has a weak reference.
        self._parameters = {id(p) for one in optimizers for p in parameters_held(one)}
        self._asking: list[weakref.ref[Any]] = []
        self._handles: list[RemovableHandle] = []
        self._restored: list[Callable[[], None]] = []
        self._was_used = self._has_noticed = False
        for index, optimizer in enumerate(optimizers):
            _torch.wrap_step(optimizer)
            may_nest = _torch.step_definitions(optimizer) > 1
            after = partial(self._finish, index, may_nest, after_round)
            self._handles += [
                optimizer.register_step_pre_hook(_before(before_step)),
                optimizer.register_step_post_hook(_after(after)),
            ]
            if hasattr(optimizer, "first_step") and hasattr(optimizer, "second_step"):
                self._follow_two_steps(optimizer, before_step, after)
        _watch_all_optimizers(self)

    def _follow_two_steps(
        self,
        optimizer: Any,
        before_step: Callable[[], None],
        after: Callable[[Optimizer], None],
    ) -> None:
        """Count SAM's ``first_step`` with ``second_step``; they run no hooks."""
        first, second = optimizer.first_step, optimizer.second_step

        @functools.wraps(first)
        def first_step(*args: Any, **kwargs: Any) -> Any:
            if not _torch.is_in_step(optimizer):
                before_step()
            return first(*args, **kwargs)

        @functools.wraps(second)
        def second_step(*args: Any, **kwargs: Any) -> Any:
            result = second(*args, **kwargs)
            if not _torch.is_in_step(optimizer):
                after(optimizer)
            return result

        def restore() -> None:
            for name in ("first_step", "second_step"):
                vars(optimizer).pop(name, None)

        optimizer.first_step, optimizer.second_step = first_step, second_step
        self._restored.append(restore)

    def notice(self, optimizer: Optimizer) -> None:
        """Warn, once, if another optimizer steps the parameters of these."""
        own = _existing(self._optimizers)
        if self._has_noticed or not self._was_used:
            return
        if any(one is optimizer for one in own):
            return
        held = (id(p) in self._parameters for p in parameters_held(optimizer))
        if not any(held) or self._is_part_of(own, optimizer):
            return
        self._has_noticed = True
        warnings.warn(
            f"A {type(optimizer).__name__} has stepped parameters that an averager "
            "follows through another optimizer, so its steps are not counted: call "
            "detach() and attach_to() with the optimizer that is used.",
            stacklevel=2,
        )

    @staticmethod
    def _is_part_of(own: list[Any], optimizer: Optimizer) -> bool:
        """Whether it is the base optimizer of one of these, as in Lookahead and SAM."""
        is_base = (value is optimizer for one in own for value in vars(one).values())
        return any(is_base) or any(map(_torch.is_in_step, own))

    def offer(self, ask: Callable[[], Any]) -> None:
        """Let an optimizer that can average in its step ask what to average.

        One optimizer serves one averager; a second one averages after the step, as does
        one whose hook is not the first: others may change the weights before it.
        """
        for reference in self._optimizers if len(self._optimizers) == 1 else ():
            if _torch.first_post_hook(reference()) != self._handles[-1].id:
                continue
            average_with = getattr(reference(), "average_with", None)
            if average_with is not None and average_with(_unless_initialising(ask)):
                self._asking = [reference]

    def wait_for(self, indices: Iterable[int]) -> None:
        """Take back which of the present optimizers have yet to step."""
        known = set(range(len(self._optimizers)))
        self.waiting_for = known.intersection(indices) or known

    def remove(self) -> None:
        """Take the hooks off the optimizers."""
        for optimizer in _existing(self._asking):
            optimizer.average_with(None)
        for handle in self._handles:
            handle.remove()
        for restore in self._restored:
            restore()
        self._handles.clear()
        self._restored.clear()
        _FOLLOWED.discard(self)

    @property
    def optimizers(self) -> list[Any]:
        """The optimizers that are followed and still exist."""
        return _existing(self._optimizers)

    def forget_state(self) -> None:
        """Drop the optimizers' moments, which they then build up anew."""
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    optimizer.state.pop(parameter, None)

    def _finish(
        self,
        index: int,
        may_nest: bool,
        after_round: Callable[[], None],
        optimizer: Optimizer,
    ) -> None:
        if was_skipped(optimizer) or is_initialising():
            return
        if may_nest and _torch.is_inner_step(optimizer):
            return
        self.waiting_for.discard(index)
        if not self.waiting_for:
            self.waiting_for.update(range(len(self._optimizers)))
            self._was_used = True
            after_round()


_FOLLOWED: "weakref.WeakSet[StepHook]" = weakref.WeakSet()
_SEEN: "weakref.WeakSet[Optimizer]" = weakref.WeakSet()
"""Optimizers that have stepped since the last hook was made."""


@functools.cache
def _register_for_all() -> RemovableHandle:
    return register_optimizer_step_post_hook(_notice)


def _watch_all_optimizers(hook: "StepHook") -> None:
    """Let a hook notice steps of optimizers that it does not follow."""
    _register_for_all()
    _FOLLOWED.add(hook)
    _SEEN.clear()


def _notice(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    if torch.compiler.is_compiling() or optimizer in _SEEN:
        return
    _SEEN.add(optimizer)
    for hook in list(_FOLLOWED):
        hook.notice(optimizer)


def parameters_held(optimizer: Any) -> list[Any]:
    """List the parameters that an optimizer updates."""
    return [p for group in optimizer.param_groups for p in group["params"]]


def check_parameters(optimizers: list[Any], model: nn.Module) -> None:
    """Refuse an optimizer that holds none of the model's parameters.

    Raises:
        ValueError: there is one, so that its steps would not be the model's.
    """
    own = {id(parameter) for parameter in model.parameters()}
    for optimizer in optimizers:
        if not any(id(parameter) in own for parameter in parameters_held(optimizer)):
            raise ValueError(
                f"optimizer must update the model, but this {type(optimizer).__name__} "
                "holds none of its parameters; make it from model.parameters()."
            )


def _existing(references: list[weakref.ref[Any]]) -> list[Any]:
    found = [reference() for reference in references]
    return [optimizer for optimizer in found if optimizer is not None]


def _before(call: Callable[[], None]) -> Callable[[Optimizer, Any, Any], None]:
    def start() -> None:
        if not is_initialising():
            call()

    return lambda optimizer, args, kwargs: outside_of_graphs(start)


def _after(
    call: Callable[[Optimizer], None],
) -> Callable[[Optimizer, Any, Any], None]:
    return lambda optimizer, args, kwargs: outside_of_graphs(call, optimizer)


def outside_of_graphs(call: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function as it is, also where torch.compile is tracing a step."""
    if torch.compiler.is_compiling():
        return _torch.outside_of_graphs(call, *arguments)
    return call(*arguments)


def was_skipped(optimizer: Optimizer) -> bool:
    """Whether a fused optimizer has just skipped its step under a GradScaler.

    The scaler calls a fused optimizer even on non-finite gradients and the kernel
    skips inside, so the step's hooks run although nothing has moved.
    """
    found_inf = getattr(optimizer, "found_inf", None)
    return found_inf is not None and bool(found_inf.item())


def is_initialising() -> bool:
    """Whether torch.distributed.checkpoint is making an optimizer's state.

    To save or load an optimizer without state, be it fresh or a plain SGD, it steps
    with zero gradients and a learning rate of zero, which is no step of the training.
    """
    checkpoint = sys.modules.get("torch.distributed.checkpoint.state_dict")
    return checkpoint is not None and _torch.is_called_by(checkpoint)


def _unless_initialising(ask: Callable[[], Any]) -> Callable[[], Any]:
    return lambda: None if is_initialising() else ask()


def as_optimizers(optimizer: Optimizers) -> list[Optimizer]:
    """List the optimizers given and check that they can be hooked."""
    if optimizer is None:
        return []
    single = isinstance(optimizer, Optimizer) or not isinstance(optimizer, Iterable)
    optimizers: list[Any] = [optimizer] if single else [*optimizer]  # type: ignore
    for candidate in optimizers:
        if not _torch.can_be_hooked(candidate):
            raise TypeError(
                "optimizer must be a torch.optim.Optimizer (or several), got "
                f"{type(candidate).__name__}; if it is wrapped, pass the torch "
                "optimizer inside the wrapper, or pass none and call update() after "
                "each step."
            )
    return [_torch.optimizer_inside(candidate) for candidate in optimizers]
