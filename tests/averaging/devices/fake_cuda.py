"""CUDA without a GPU: tensors with a shape, a dtype and a device, but no values.

torch's fake tensors run every operator up to the kernel. :class:`Accelerator` writes
down which kernels would be launched, and where the host would wait for the device.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

ATEN = torch.ops.aten
_ANSWERS = {
    # What the host is told: all is finite, and nothing differs.
    ATEN._local_scalar_dense.default: 1,
    ATEN.equal.default: True,
}
_WITHOUT_FAKE = (torch.ops.aten._fused_sgd_.default,)
"""Kernels of torch that have no version for fake tensors; they return nothing."""


class Accelerator(TorchDispatchMode):
    """Records launches of kernels and waits of the host."""

    def __init__(self) -> None:
        super().__init__()
        self.launches: list[str] = []
        self.waits: list[str] = []

    def forget(self) -> None:
        self.launches.clear()
        self.waits.clear()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        given = tensors_in((args, kwargs))
        on_device = any(tensor.is_cuda for tensor in given)
        if on_device and func in _ANSWERS:
            self.waits.append(func.name())
            return _ANSWERS[func]
        is_skipped = func in _WITHOUT_FAKE
        results = None if is_skipped else func(*args, **kwargs)
        made = tensors_in(results)
        if _copies_to_host(func, args, kwargs, made):
            self.waits.append(func.name())
        if _is_kernel(func) and (on_device or any(tensor.is_cuda for tensor in made)):
            self.launches.append(func.name())
        return results


def tensors_in(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _is_kernel(func: Any) -> bool:
    """Tell arithmetic and copies from views, new memory and questions of metadata."""
    returns = func._schema.returns
    is_view = any(r.alias_info and not r.alias_info.is_write for r in returns)
    has_none = "empty" in func.name() or func is ATEN.lift_fresh.default
    return func.namespace == "aten" and not is_view and not has_none


def _copies_to_host(func: Any, args: Any, kwargs: Any, made: list[Tensor]) -> bool:
    is_copy = func in (ATEN._to_copy.default, ATEN.copy_.default)
    if not is_copy or not any(tensor.is_cpu for tensor in made):
        return False
    is_from_device = any(tensor.is_cuda for tensor in tensors_in(args))
    return is_from_device and not (kwargs.get("non_blocking") or args[2:] == (True,))


@contextmanager
def fake_cuda() -> Iterator[Accelerator]:
    """Make new tensors fake ones, on the GPU unless they say otherwise."""
    with FakeTensorMode(), torch.device("cuda"), Accelerator() as accelerator:
        yield accelerator


def convolutions(layers: int, dtype: torch.dtype = torch.float32) -> nn.Sequential:
    """Convolutions with batch norm: per layer four parameters and three buffers."""
    blocks = [
        nn.Sequential(nn.Conv2d(8, 8, 3, dtype=dtype), nn.BatchNorm2d(8, dtype=dtype))
        for _ in range(layers)
    ]
    return nn.Sequential(*blocks)


def give_gradients(model: nn.Module) -> None:
    """Stand in for a backward pass, which torch cannot run without a driver."""
    for parameter in model.parameters():
        parameter.grad = torch.empty_like(parameter)
