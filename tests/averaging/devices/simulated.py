"""A device that is not the CPU, made of host memory and Python.

torch dispatches to it as to any accelerator that brings its own backend
(PrivateUse1). Its tensors are plain ``torch.Tensor`` objects with a storage, an address
and strides; a kernel takes the memory for that of a CPU tensor and calls the CPU's
kernel. Mixing it with CPU tensors raises, as on an accelerator.

It is a plugin for pytest (``-p``) and needs a process of its own, since a backend
cannot be unregistered.
"""

import ctypes
import functools
from typing import Any

import torch
from torch import Tensor
from torch.utils import dlpack

NAME = "simulated"
_HOST, _EXTENSION = 1, 12
"""DLPack's numbers of the CPU and of a device that an extension brings."""


class _Device(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int32), ("index", ctypes.c_int32))


class _Header(ctypes.Structure):
    """The beginning of DLPack's DLTensor."""

    _fields_ = (("data", ctypes.c_void_p), ("device", _Device))


_pointer_in = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_in.restype = ctypes.c_void_p
_pointer_in.argtypes = (ctypes.py_object, ctypes.c_char_p)


def _relabel(tensor: Tensor, device: int) -> Tensor:
    """Return the same memory as a tensor of the other device."""
    capsule = dlpack.to_dlpack(tensor)
    header = _Header.from_address(_pointer_in(capsule, b"dltensor"))
    header.device.type, header.device.index = device, 0
    other = dlpack.from_dlpack(capsule)
    if other.stride() == tensor.stride():
        return other
    return other.as_strided(tensor.shape, tensor.stride())


def _to_host(value: Any) -> Any:
    if isinstance(value, Tensor):
        return _relabel(value, _HOST) if value.device.type == NAME else value
    if isinstance(value, (list, tuple)):
        return type(value)(map(_to_host, value))
    is_device = isinstance(value, torch.device) and value.type == NAME
    return torch.device("cpu") if is_device else value


def _to_device(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(map(_to_device, value))
    return _relabel(value, _EXTENSION) if isinstance(value, Tensor) else value


def _move_into(tensor: Tensor, values: Tensor) -> None:
    """Give a tensor other memory."""
    storage = _relabel(values, _EXTENSION).untyped_storage()
    tensor.set_(storage, 0, values.shape, values.stride())


class _Signature:
    """What the schema of an operator says about its arguments and results."""

    def __init__(self, op: Any) -> None:
        arguments, returns = op._schema.arguments, op._schema.returns
        views = [r for r in returns if r.alias_info and not r.alias_info.is_write]
        self.only_looks_at_shapes = bool(views) or op.overloadpacket is _SET
        self.makes_new = all(r.alias_info is None for r in returns)
        self.written = [
            (i, argument.name)
            for i, argument in enumerate(arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        self.tensors = [i for i, a in enumerate(arguments) if str(a.type) == "Tensor"]


_SET = torch.ops.aten.set_
_CPU_KERNELS = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
_signature = functools.cache(_Signature)


def _run(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Run an operator by the CPU's kernel on the same memory."""
    signature = _signature(op)
    if signature.only_looks_at_shapes:
        return op.redispatch(_CPU_KERNELS, *args, **kwargs)
    given = list(args)
    for i in signature.tensors:  # torch passes a number where it has a tensor of one
        if i < len(given) and isinstance(given[i], (bool, int, float, complex)):
            dtype = next(a.dtype for a in args if isinstance(a, Tensor))
            given[i] = torch.tensor(given[i], dtype=dtype)
    # Empty tensors that a kernel is to fill get memory first; others keep theirs.
    empty = {
        name: torch.empty(0, dtype=value.dtype)
        for name, value in kwargs.items()
        if isinstance(value, Tensor) and not value.numel() and "out" in name
    }
    on_host = {name: _to_host(value) for name, value in kwargs.items()} | empty
    results = op(*map(_to_host, given), **on_host)
    for name, filled in empty.items():
        _move_into(kwargs[name], filled)
    if signature.makes_new:
        return _to_device(results)
    written = [
        kwargs[name] if name in kwargs else args[i] for i, name in signature.written
    ]
    return written[0] if len(op._schema.returns) == 1 else tuple(written)


def _resize(tensor: Tensor, size: list[int], *, memory_format: Any = None) -> Tensor:
    old, new = _to_host(tensor).flatten(), torch.empty(size, dtype=tensor.dtype)
    count = min(old.numel(), new.numel())
    new.flatten()[:count].copy_(old[:count])
    _move_into(tensor, new)
    return tensor


def _copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    _to_host(target).copy_(_to_host(source))
    return target


def _convolve(*args: Any) -> Tensor:
    return _run(torch.ops.aten.convolution.default, *args)


def _convolve_backward(
    gradient: Tensor, x: Tensor, weight: Tensor, *args: Any
) -> tuple[Tensor, ...]:
    *options, mask = args
    sizes = [weight.shape[1 if options[3] else 0]]  # transposed or not
    op = torch.ops.aten.convolution_backward.default
    return _run(op, gradient, x, weight, sizes, *options, mask)


def _deserialize(storage: torch.UntypedStorage, location: str) -> Any:
    if not location.startswith(NAME):
        return None
    values = torch.empty(0, dtype=torch.uint8).set_(storage)
    return _relabel(values, _EXTENSION).untyped_storage()


def _clone_storage(storage: Any) -> Any:
    """Copy memory by a kernel, as the device has no allocator that torch knows of."""
    if storage.device.type != NAME:
        return _clone_on_host(storage)
    values = torch.empty(0, dtype=torch.uint8, device=NAME).set_(storage)
    return values.clone().untyped_storage()


_clone_on_host = torch.UntypedStorage.clone
_LIBRARIES: list[torch.library.Library] = []
"""Kernels are registered as long as these live."""


def pytest_configure() -> None:
    """Register the device when pytest loads this file as a plugin."""
    # Versions of torch before 2.10 do not have it.
    from torch.utils import backend_registration

    backend_registration._setup_privateuseone_for_python_backend(NAME)
    everything = torch.library.Library("_", "IMPL")
    everything.fallback(_run, "PrivateUse1")
    kernels = torch.library.Library("aten", "IMPL")
    kernels.impl("_copy_from", _copy_from, "PrivateUse1")
    kernels.impl("resize_", _resize, "PrivateUse1")
    kernels.impl("convolution_overrideable", _convolve, "PrivateUse1")
    kernels.impl("convolution_backward_overrideable", _convolve_backward, "PrivateUse1")
    _LIBRARIES.extend((everything, kernels))
    torch.UntypedStorage.clone = _clone_storage  # type: ignore[method-assign]
    torch.serialization.register_package(0, lambda storage: None, _deserialize)
