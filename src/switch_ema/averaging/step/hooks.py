"""Hooks on ``optimizer.step`` that make calls of ``update`` unnecessary."""

import functools
import sys
import warnings
import weakref
from collections.abc import Callable, Iterable
from dataclasses import InitVar, dataclass
from functools import partial
from typing import Any, Literal, Union

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.hooks import RemovableHandle

from switch_ema._checks import check_choice
from switch_ema.averaging import _torch
from switch_ema.averaging._signals import Uninterrupted
from switch_ema.averaging.step.rounds import Counting, Round

_Hook = Callable[[Any, Any, Any], None]
"""A step hook, called with the optimizer and the arguments of ``step``."""

Optimizers = Union[Optimizer, Iterable[Optimizer], None]
"""None, one or several."""


OptimizerState = Literal["keep", "reset"]
"""Whether a switch keeps the optimizer's moments."""


def check_optimizer_state(policy: OptimizerState, optimizer: Optimizers) -> bool:
    """Check the argument optimizer_state; return whether it asks for a reset."""
    check_choice("optimizer_state", policy, ("keep", "reset"))
    if policy == "reset" and optimizer is None:
        raise ValueError(
            "optimizer_state='reset' needs an optimizer; pass it as second argument."
        )
    return policy == "reset"


_FIRST_PARAMETER = 1_000_000
"""Number of the first parameter, above the number of any optimizer."""


class StepHook:
    """Calls back once per training step, made by one or several optimizers.

    With one optimizer each real step counts, with several ``counting`` decides (see
    :class:`Averager`). An optimizer that steps its parameters one by one, in
    ``backward()``, counts when all of them have stepped.

    The optimizers hold the callbacks, and this class holds the optimizers weakly:
    without a reference cycle, memory is freed as soon as they are dropped.
    """

    def __init__(
        self,
        optimizers: list[Optimizer],
        before_step: Callable[[], None],
        after_round: Callable[[], None],
        counting: Counting = "round",
    ) -> None:
        numbers = range(len(optimizers))
        self.counting: Counting = counting if len(optimizers) > 1 else "any"
        self._round = Round(numbers, may_rest=counting == "round")
        # By index of optimizers that step their parameters one by one.
        self._released: dict[int, _Released] = {}
        self._optimizers: list[weakref.ref[Any]] = [*map(weakref.ref, optimizers)]
        # Ids, not weak references: torch refuses to cast a sharded parameter that has
        # a weak reference.
        self._parameters = {id(p) for one in optimizers for p in _parameters_held(one)}
        self._asking: list[weakref.ref[Any]] = []
        self._members: list[weakref.ref[_Member]] = []
        self._restored: list[Callable[[], None]] = []
        self._was_used = self._has_noticed = self._has_uncounted = False
        for index, optimizer in enumerate(optimizers):
            _torch.wrap_step(optimizer)
            may_nest = _torch.step_definitions(optimizer) > 1
            before = partial(self._begin, index, before_step, after_round)
            after = partial(self._finish, index, may_nest, after_round)
            counts_before = self.counting == "round"
            member = _Member(optimizer, before, after, counts_before)
            self._members.append(weakref.ref(member))
            if hasattr(optimizer, "first_step") and hasattr(optimizer, "second_step"):
                self._follow_two_steps(optimizer, before, after)
        _watch_all_optimizers(self)

    def _follow_two_steps(self, optimizer: Any, before: _Hook, after: _Hook) -> None:
        """Count SAM's ``first_step`` and ``second_step`` as one; they run no hooks."""
        first, second = optimizer.first_step, optimizer.second_step

        @functools.wraps(first)
        def first_step(*args: Any, **kwargs: Any) -> Any:
            if not _torch.is_in_step(optimizer):
                with Uninterrupted():
                    before(optimizer, (), {})
            return first(*args, **kwargs)

        @functools.wraps(second)
        def second_step(*args: Any, **kwargs: Any) -> Any:
            result = second(*args, **kwargs)
            if not _torch.is_in_step(optimizer):
                with Uninterrupted():
                    after(optimizer, (), {})
            return result

        def restore() -> None:
            for name in ("first_step", "second_step"):
                vars(optimizer).pop(name, None)

        optimizer.first_step, optimizer.second_step = first_step, second_step
        self._restored.append(restore)

    def notice(self, optimizer: Optimizer) -> None:
        """Warn once if another optimizer steps the same parameters."""
        own = _existing(self._optimizers)
        if self._has_noticed or not self._was_used:
            return
        if any(one is optimizer for one in own):
            return
        held = (id(p) in self._parameters for p in _parameters_held(optimizer))
        if not any(held) or self._is_part_of(own, optimizer):
            return
        self._has_noticed = True
        warnings.warn(
            f"{type(optimizer).__name__} stepped parameters that an averager tracks "
            "through another optimizer, so its steps are not counted; call detach(), "
            "then attach_to() with the optimizer you train with.",
            stacklevel=2,
        )

    @staticmethod
    def _is_part_of(own: list[Any], optimizer: Optimizer) -> bool:
        """Whether it is the base optimizer of one of these, as in Lookahead and SAM."""
        is_base = (value is optimizer for one in own for value in vars(one).values())
        return any(is_base) or any(map(_torch.is_in_step, own))

    def offer(self, ask: Callable[[], Any]) -> None:
        """Offer the average to an optimizer that can compute it in its step.

        An optimizer serves one averager; a second one averages after the step. So does
        an averager whose hook is not the first, because earlier hooks may still change
        the weights.
        """
        for reference in self._optimizers if len(self._optimizers) == 1 else ():
            member = self._members[-1]()
            if member is None or not member.is_first_after(reference()):
                continue
            average_with = getattr(reference(), "average_with", None)
            if average_with is not None and average_with(_unless_initialising(ask)):
                self._asking = [reference]

    # Rounds of optimizers, and of parameters where an optimizer steps them one by one.

    @property
    def waiting_for(self) -> list[int]:
        """Numbers that must still step in rounds that have begun."""
        # A round that has not begun must not be saved: loaded with more optimizers,
        # the new ones would count as having stepped.
        begun = (one.waiting_for for one in self._rounds() if one.is_open)
        return sorted(set[int]().union(*begun))

    @property
    def resting(self) -> list[int]:
        """Numbers that the current rounds do not wait for."""
        return sorted(set[int]().union(*(one.resting for one in self._rounds())))

    def wait_for(self, waiting_for: Iterable[int], resting: Iterable[int]) -> None:
        """Restore a saved round, ignoring optimizers that no longer exist."""
        parameters = {i for i in (*waiting_for, *resting) if i >= _FIRST_PARAMETER}
        for index in range(len(self._optimizers) if parameters else 0):
            if parameters.intersection(self._numbers_of(index)):
                self._release(index)
        for one in self._rounds():
            one.resume(waiting_for, resting)

    def close_round(self) -> bool:
        """End an incomplete round; return whether to count it."""
        if self.counting not in ("round", "any"):
            return False
        is_open = any(one.is_open for one in self._rounds())
        self.forget_round()
        return is_open

    def forget_round(self) -> None:
        """End an incomplete round without counting it."""
        self._has_uncounted = False
        for one in self._rounds():
            one.close()

    def missing(self) -> str | None:
        """Name the optimizer that the count waits for, if others have stepped."""
        if not self._has_uncounted or self.counting in ("round", "any"):
            return None
        if self.counting == "all":
            numbers = sorted(self._round.waiting_for)
        else:
            numbers = [int(self.counting)]
        names = (type(self._optimizers[number]()).__name__ for number in numbers)
        listed = [f"{i} ({name})" for i, name in zip(numbers, names, strict=True)]
        return f"optimizer {' and '.join(listed)}"

    def _rounds(self) -> list[Round]:
        return [self._round, *self._released.values()]

    def _numbers_of(self, index: int) -> range:
        """Return the numbers of the parameters of an optimizer."""
        found = [reference() for reference in self._optimizers]
        sizes = [0 if one is None else len(_parameters_held(one)) for one in found]
        first = _FIRST_PARAMETER + sum(sizes[:index])
        return range(first, first + sizes[index])

    def _release(self, index: int) -> "_Released":
        """Track the parameters of an optimizer one by one."""
        held = _parameters_held(self._optimizers[index]())
        numbers = zip(map(id, held), self._numbers_of(index), strict=True)
        self._released[index] = _Released(dict(numbers))
        return self._released[index]

    def _stepped_alone(
        self, index: int, args: Any, kwargs: Any
    ) -> "tuple[_Released, int] | None":
        """Return the parameter that ``step(parameter)`` was called for, if any."""
        for argument in (*args, *kwargs.values()):
            if isinstance(argument, nn.Parameter):
                released = self._released.get(index)
                if released is None or id(argument) not in released.numbers:
                    released = self._release(index)
                number = released.numbers.get(id(argument))
                return None if number is None else (released, number)
        return None

    def _begin(
        self,
        index: int,
        before_step: Callable[[], None],
        after_round: Callable[[], None],
        optimizer: Optimizer,
        args: Any,
        kwargs: Any,
    ) -> None:
        if _is_initialising():
            return
        before_step()
        has_arguments = len(args) > 1 or kwargs
        part = self._stepped_alone(index, args, kwargs) if has_arguments else None
        if part is not None:
            released, number = part
            if released.before_step(number):
                self._count(index, after_round)
            if released.is_open:
                return
        if self.counting == "round" and self._round.before_step(index):
            self._was_used = True
            after_round()

    def _finish(
        self,
        index: int,
        may_nest: bool,
        after_round: Callable[[], None],
        optimizer: Optimizer,
        args: Any,
        kwargs: Any,
    ) -> None:
        if was_skipped(optimizer) or _is_initialising():
            return
        if may_nest and _torch.is_inner_step(optimizer):
            return
        has_arguments = len(args) > 1 or kwargs
        part = self._stepped_alone(index, args, kwargs) if has_arguments else None
        if part is not None:
            # optimi only adds the gradients to its moments here; no weight moves.
            if getattr(optimizer, "optimizer_accumulation", False):
                return
            released, number = part
            if not released.after_step(number):
                return
        elif index in self._released and not _has_gradients(optimizer):
            return  # all parameters have stepped, and their gradients are gone
        self._count(index, after_round)

    def _count(self, index: int, after_round: Callable[[], None]) -> None:
        """Count a whole step of one optimizer, if it is due."""
        if isinstance(self.counting, int):
            is_due = self.counting == index
        else:
            is_due = self.counting == "any" or self._round.after_step(index)
        self._has_uncounted = not is_due
        if is_due:
            self._was_used = True
            after_round()

    def remove(self) -> None:
        """Take the hooks off the optimizers."""
        for optimizer in _existing(self._asking):
            optimizer.average_with(None)
        for member in _existing(self._members):
            member.remove()
        for restore in self._restored:
            restore()
        self._members.clear()
        self._restored.clear()
        _FOLLOWED.discard(self)

    @property
    def optimizers(self) -> list[Any]:
        """The optimizers that are followed and still exist."""
        return _existing(self._optimizers)

    def forget_state(self) -> None:
        """Drop the optimizers' state, such as moments."""
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    optimizer.state.pop(parameter, None)


@dataclass(eq=False)
class _Member:
    """What one averager does before and after the steps of one optimizer.

    Only the optimizer's hooks hold it, so that a training is freed at once.
    """

    optimizer: InitVar[Any]
    before: _Hook
    after: _Hook
    counts_before: bool
    """Whether ``before`` may count, the end of a round, and not only ``after``."""

    def __post_init__(self, optimizer: Any) -> None:
        """Join the averagers that were connected just before, if any."""
        known = _SHARED.get(optimizer)
        shared = None if known is None else known()
        if shared is None or not shared.are_last_of(optimizer):
            shared = _SharedHooks(optimizer)
            _SHARED[optimizer] = weakref.ref(shared)
        self._shared = weakref.ref(shared)
        shared.members = (*shared.members, self)
        shared.count_before |= self.counts_before

    def is_first_after(self, optimizer: Any) -> bool:
        """Whether nothing else runs between a step and this."""
        shared = self._shared()
        if shared is None or shared.members[0] is not self:
            return False
        return _torch.first_post_hook(optimizer) == shared.handles[1].id

    def remove(self) -> None:
        """Leave the optimizer, if it still exists."""
        shared = self._shared()
        if shared is None:
            return
        shared.members = tuple(one for one in shared.members if one is not self)
        if not shared.members:
            for handle in shared.handles:
                handle.remove()


class _SharedHooks:
    """The hooks of averagers that were connected to an optimizer one after the other.

    They share one hook before and one after the step, to hold signals back until all
    have counted: a Ctrl-C between two hooks would leave their counts apart.
    """

    def __init__(self, optimizer: Any) -> None:
        self.members: tuple[_Member, ...] = ()
        self.count_before = False
        self._waits = hasattr(optimizer, "release_signals")
        self.handles: tuple[RemovableHandle, RemovableHandle] = (
            optimizer.register_step_pre_hook(_outside_of_graphs(self._before)),
            optimizer.register_step_post_hook(_outside_of_graphs(self._after)),
        )

    def are_last_of(self, optimizer: Any) -> bool:
        """Whether no hook of somebody else was registered after these."""
        before, after = self.handles
        return _torch.last_hooks(optimizer) == (before.id, after.id)

    def _before(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        # Averagers of one optimizer, which count after its step, need no protection.
        if self.count_before or len(args) > 1 or kwargs:
            with Uninterrupted():
                self._call_before(optimizer, args, kwargs)
        else:
            self._call_before(optimizer, args, kwargs)

    def _call_before(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        for member in self.members:
            member.before(optimizer, args, kwargs)

    def _after(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        try:
            with Uninterrupted():
                for member in self.members:
                    member.after(optimizer, args, kwargs)
        finally:
            if self._waits:  # if it has averaged, until the average is counted
                optimizer.release_signals()


_SHARED: "weakref.WeakKeyDictionary[Any, weakref.ref[_SharedHooks]]"
_SHARED = weakref.WeakKeyDictionary()
"""The hooks registered last with each optimizer, which alone keeps them."""


class _Released(Round):
    """A round of the parameters of one optimizer, which steps them one by one.

    This is gradient release: a parameter steps as soon as it has its gradient, which
    is then freed, all within ``backward()``.
    """

    def __init__(self, numbers: dict[int, int]) -> None:
        super().__init__(numbers.values())
        self.numbers = numbers
        """Numbers of the parameters by their ids."""


def _has_gradients(optimizer: Any) -> bool:
    return any(parameter.grad is not None for parameter in _parameters_held(optimizer))


_FOLLOWED: "weakref.WeakSet[StepHook]" = weakref.WeakSet()
_SEEN: "weakref.WeakSet[Optimizer]" = weakref.WeakSet()
"""Optimizers that have stepped since the last hook was made."""


@functools.cache
def _register_for_all() -> RemovableHandle:
    return register_optimizer_step_post_hook(_notice)


def _watch_all_optimizers(hook: "StepHook") -> None:
    """Make a hook notice steps of other optimizers."""
    _register_for_all()
    _FOLLOWED.add(hook)
    _SEEN.clear()


def _notice(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    if torch.compiler.is_compiling() or optimizer in _SEEN:
        return
    _SEEN.add(optimizer)
    for hook in list(_FOLLOWED):
        hook.notice(optimizer)


def _parameters_held(optimizer: Any) -> list[Any]:
    """List the parameters that an optimizer updates."""
    return [p for group in optimizer.param_groups for p in group["params"]]


def check_parameters(optimizers: list[Any], model: nn.Module) -> None:
    """Refuse an optimizer that holds none of the model's parameters.

    Raises:
        ValueError: an optimizer does not train the model.
    """
    own = {id(parameter) for parameter in model.parameters()}
    for optimizer in optimizers:
        if not any(id(parameter) in own for parameter in _parameters_held(optimizer)):
            raise ValueError(
                f"optimizer must update the model, but this {type(optimizer).__name__} "
                "has none of its parameters; create it from model.parameters()."
            )


def _existing(references: list[weakref.ref[Any]]) -> list[Any]:
    found = [reference() for reference in references]
    return [one for one in found if one is not None]


def _outside_of_graphs(call: _Hook) -> _Hook:
    def hook(optimizer: Any, args: Any, kwargs: Any) -> None:
        if torch.compiler.is_compiling():
            outside_of_graphs(call, optimizer, args, kwargs)
        else:
            call(optimizer, args, kwargs)

    return hook


def outside_of_graphs(call: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function eagerly, also while torch.compile is tracing a step."""
    if torch.compiler.is_compiling():
        _torch.leave_graph()
        return _torch.outside_of_graphs(call, *arguments)
    return call(*arguments)


def was_skipped(optimizer: Optimizer) -> bool:
    """Whether a fused optimizer has just skipped its step under a GradScaler.

    The scaler calls a fused optimizer even on non-finite gradients and the kernel skips
    the update, so the hooks run although no weight has changed.
    """
    found_inf = getattr(optimizer, "found_inf", None)
    return found_inf is not None and bool(found_inf.item())


def _is_initialising() -> bool:
    """Whether torch.distributed.checkpoint is making an optimizer's state.

    To save or load an optimizer without state, it steps with zero gradients and a
    learning rate of zero, which is not a training step.
    """
    checkpoint = sys.modules.get("torch.distributed.checkpoint.state_dict")
    return checkpoint is not None and _torch.is_called_by(checkpoint)


def _unless_initialising(ask: Callable[[], Any]) -> Callable[[], Any]:
    return lambda: None if _is_initialising() else ask()


def as_optimizers(optimizer: Optimizers) -> list[Optimizer]:
    """Return the torch optimizers as a list; raise if one cannot be hooked."""
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
