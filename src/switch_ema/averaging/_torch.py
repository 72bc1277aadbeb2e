"""Private parts of torch that this library depends on.

Attributes with a leading underscore and the call stack are read only in this file, so a
new version of torch is checked in one place. Private arithmetic functions are in
:mod:`switch_ema.averaging.kernels.torch_ops`.
"""

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from functools import partial
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.utils import parametrize
from torch.optim import Optimizer

NormLayer = _NormBase
"""The base class of all layers that keep running statistics."""

_STEP_WRAPPER_FILE = Optimizer.profile_hook_step.__code__.co_filename
"""The file of torch's wrapper around ``step``, which runs the hooks."""


# Modules and tensors.


def parameters_of(module: nn.Module) -> dict[str, Any]:
    """Return the dictionary in which a module holds its own parameters."""
    return _as_dict(module._parameters)


def buffers_of(module: nn.Module) -> dict[str, Any]:
    """Return the dictionary in which a module holds its own buffers."""
    return _as_dict(module._buffers)


def is_persistent(module: nn.Module, buffer: str) -> bool:
    """Whether a buffer is in the module's state dict."""
    return buffer not in module._non_persistent_buffers_set


def children_of(module: nn.Module) -> dict[str, nn.Module | None]:
    """Return the dictionary in which a module holds its children."""
    return _as_dict(module._modules)


class _Scripted(MutableMapping[str, Any]):
    """A mapping over the C++ container of a TorchScript module."""

    def __init__(self, held: Any) -> None:
        self._held = held

    def __getitem__(self, key: str) -> Any:
        return self._held[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self._held[key] = value

    def __delitem__(self, key: str) -> None:
        del self._held[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._held.keys())

    def __len__(self) -> int:
        return len(self._held)


def _as_dict(held: Any) -> dict[str, Any]:
    """Return a module's dictionary, or a view of a TorchScript module's container."""
    if not isinstance(held, dict) and not hasattr(held, "_mapping"):
        held._mapping = _Scripted(held)
    mapping: dict[str, Any] = getattr(held, "_mapping", held)
    return mapping


def local_tensor(tensor: Any) -> Tensor | None:
    """Return the plain tensor inside a DTensor; None for any other tensor.

    ``to_local()`` would make a new view at each call; the inner tensor stays the same
    object, so changes can be noticed by identity.
    """
    inside: Tensor | None = getattr(tensor, "_local_tensor", None)
    return inside


def version_of(tensor: Tensor) -> int:
    """Return how often a tensor was written in place, 0 for an inference tensor."""
    return 0 if tensor.is_inference() else tensor._version


def forget_computed_weights() -> None:
    """Drop cached copies of weights: autocast's casts, ``parametrize.cached()``'s."""
    torch.clear_autocast_cache()
    parametrize._cache.clear()


def metadata_addresses(tensor: Tensor) -> tuple[int, int, int]:
    """Return the addresses of the Python object, the C++ tensor and its storage."""
    return id(tensor), tensor._cdata, tensor.untyped_storage()._cdata


# Processes.


def default_store() -> Any:
    """Return the rendezvous store of the default group, None without one (MPI)."""
    from torch.distributed import distributed_c10d  # absent in some builds of torch

    try:
        return distributed_c10d._get_default_store()
    except (RuntimeError, ValueError):
        return None


def is_joining(replica: nn.Module) -> bool:
    """Whether a DDP module has been used with ``join()``, for uneven data.

    torch leaves this flag on after the block, on all ranks.
    """
    config = getattr(replica, "_join_config", None)
    return config is not None and bool(config.enable)


# Optimizers.


def can_be_hooked(optimizer: object) -> bool:
    """Whether an object has the step hooks of ``torch.optim.Optimizer``."""
    return hasattr(optimizer, "_optimizer_step_post_hooks")


def optimizer_inside(optimizer: Any) -> Any:
    """Return the optimizer inside a wrapper, or the given one.

    The wrappers of Lightning and Fabric expose the inner optimizer's hooks as their
    own. If the wrapper were hooked, torch would run the hooks around both steps.
    """
    own = getattr(optimizer, "__dict__", {})
    hooks = getattr(optimizer, "_optimizer_step_post_hooks", None)
    if hooks is None or "_optimizer_step_post_hooks" in own:
        return optimizer
    for value in own.values():
        # By type: Lightning's wrapper also holds a proxy of its strategy.
        if issubclass(type(value), Optimizer):
            inside = optimizer_inside(value)
            if inside._optimizer_step_post_hooks is hooks:
                return inside
    return optimizer


def wrap_step(optimizer: Any) -> None:
    """Make torch wrap ``step`` now, so that hooks run from the first step.

    For classes that do not call ``Optimizer.__init__``, such as timm's Lookahead, torch
    would wrap it only at some later call.
    """
    if not getattr(type(optimizer).step, "hooked", False):
        optimizer._patch_step_function()


def first_post_hook(optimizer: object) -> int | None:
    """Return the id of the hook that runs first after a step, None without hooks."""
    return next(iter(getattr(optimizer, "_optimizer_step_post_hooks", {})), None)


def last_hooks(optimizer: object) -> tuple[int | None, int | None]:
    """Return the ids of the hooks that run last before and after a step."""
    names = "_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"
    before, after = (next(reversed(getattr(optimizer, name)), None) for name in names)
    return before, after


def init_group(optimizer: Any, group: dict[str, Any], *columns: list[Any]) -> None:
    """Fill lists with the tensors of a parameter group and their state."""
    optimizer._init_group(group, *columns)


def without_hooks(step: Callable[..., Any]) -> Callable[..., Any]:
    """Return a bound ``step`` without the wrapper that runs the hooks."""
    if not getattr(step, "hooked", False):
        return step
    return partial(step.__wrapped__, step.__self__)  # type: ignore[attr-defined]


def step_definitions(optimizer: Optimizer) -> int:
    """Count the classes that define ``step``, ignoring the wrappers torch adds."""
    classes = [cls for cls in type(optimizer).__mro__ if cls is not Optimizer]
    return len({inspect.unwrap(vars(c)["step"]) for c in classes if "step" in vars(c)})


def is_in_step(optimizer: Optimizer) -> bool:
    """Whether a step of the optimizer is on the call stack."""
    return _steps_on_stack(optimizer, at_most=1) == 1


def is_inner_step(optimizer: Optimizer) -> bool:
    """Whether the current step was called by another step of the same optimizer.

    torch wraps ``step`` in every class, so the hooks run twice if a subclass calls
    ``super().step()``. The outermost step has one such wrapper on the call stack, an
    inner step has two. Unlike a counter, the stack stays right after an exception.
    """
    return _steps_on_stack(optimizer, at_most=2) == 2


def _steps_on_stack(optimizer: Optimizer, at_most: int) -> int:
    wrappers = 0
    for frame in _frames():
        is_wrapper = frame.f_code.co_filename == _STEP_WRAPPER_FILE
        wrappers += is_wrapper and frame.f_locals.get("self") is optimizer
        if wrappers == at_most:
            break
    return wrappers


# Files.


def pickle_in(file: Any) -> bytes:
    """Return the pickle inside a zip file of ``torch.save``, without unpickling it."""
    return bytes(torch._C.PyTorchFileReader(file).get_record("data.pkl"))


# The call stack and the compiler.


def is_called_by(module: Any) -> bool:
    """Whether a function of the given Python module is on the call stack."""
    names = vars(module)
    return any(frame.f_globals is names for frame in _frames())


def _frames() -> Iterable[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def leave_graph() -> None:
    """Make torch.compile end its graph here; with ``fullgraph=True`` raise why."""
    # torch includes the message in its error only if it is a literal.
    torch._dynamo.graph_break(
        msg="switch-ema averages after the step, outside of its graph. With "
        "fullgraph=True, give the averager no optimizer and call update() after each "
        "compiled step."
    )


@_disable_dynamo
def outside_of_graphs(call: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function eagerly while torch.compile is tracing."""
    return call(*arguments)
