"""The kernels of kernels.c as functions of address tables.

The kernels do not check their tables. The caller ensures that all tensors are on the
CPU, dense, of one dtype and kept alive, and that the tensors of a row have the same
strides.
"""

import ctypes
from array import array
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from switch_ema.averaging._torch import metadata_addresses
from switch_ema.averaging.kernels.native.library import library

Table: TypeAlias = "array[int]"
"""Addresses, column by column, then the sizes of the rows."""

_LINE = 64
"""Bytes in a cache line."""

_LINES = 2, 4, 2
"""Cache lines read of the Python object, of the C++ tensor and of the storage."""


class SgdNumbers(ctypes.Structure):
    """Parameters of SGD with an average, as declared in kernels.c."""

    _fields_ = (
        ("rate", ctypes.c_double),
        ("decay", ctypes.c_double),
        ("momentum", ctypes.c_double),
        ("dampening", ctypes.c_double),
        ("sign", ctypes.c_double),
        ("share", ctypes.c_double),
        ("has_momentum", ctypes.c_int64),
        ("is_nesterov", ctypes.c_int64),
    )


class AdamNumbers(ctypes.Structure):
    """Parameters of Adam and AdamW with an average, as declared in kernels.c."""

    _fields_ = (
        ("rate", ctypes.c_double),
        ("beta1", ctypes.c_double),
        ("beta2", ctypes.c_double),
        ("epsilon", ctypes.c_double),
        ("decay", ctypes.c_double),
        ("sign", ctypes.c_double),
        ("share", ctypes.c_double),
        ("is_decoupled", ctypes.c_int64),
    )


class _DitherNumbers(ctypes.Structure):
    _fields_ = (
        ("weight", ctypes.c_double),
        ("phases", ctypes.c_int64),
        ("period", ctypes.c_int64),
        ("offset", ctypes.c_int64),
        ("live_is_half", ctypes.c_int64),
    )


def table_of(columns: Sequence[Iterable[Tensor]], sizes: Iterable[int]) -> Table:
    """Put addresses and sizes into a table."""
    table = array("q")
    for column in columns:
        table.extend(map(Tensor.data_ptr, column))
    table.extend(sizes)
    return table


def lines_of(tensors: Iterable[Tensor]) -> Table:
    """List the cache lines that hold the metadata of tensors (not their values).

    Reading the address or shape of a tensor touches its Python object, the C++ tensor
    and the storage: a handful of cache lines scattered over memory.
    """
    lines: dict[int, None] = {}
    for tensor in tensors:
        addresses = metadata_addresses(tensor)
        for address, count in zip(addresses, _LINES, strict=True):
            first = address - address % _LINE
            lines |= dict.fromkeys(range(first, first + count * _LINE, _LINE))
    return array("q", lines)


def lerp_(
    table: Table, dtype: torch.dtype, weight: float, finite_only: bool = False
) -> int | None:
    """``shadow += weight * (live - shadow)``; columns: shadow, live.

    With ``finite_only``, ``shadow = live`` where either is not finite. Without, return
    1 if all results are finite, else 0.
    """
    name = "lerp_finite" if finite_only else "lerp"
    is_finite: int | None = _call(name, dtype, table, 3, weight)
    return is_finite


def lerp_dithered_(
    table: Table, live: torch.dtype, weight: float, phases: Tensor, offset: int
) -> None:
    """The same for bfloat16 shadows of float32 or bfloat16 weights.

    Args:
        table: table of contiguous tensors.
        live: dtype of the live weights.
        weight: weight of the live tensors, ``1 - decay``.
        phases: int32 thresholds, one per element of a shadow, repeated if it is longer.
        offset: added to all thresholds.
    """
    is_half = live == torch.bfloat16
    numbers = _DitherNumbers(weight, phases.data_ptr(), phases.numel(), offset, is_half)
    _call("lerp_dithered", torch.float32, table, 3, ctypes.byref(numbers))


def copy_(table: Table) -> None:
    """``target = source``; columns: target, source; sizes in bytes."""
    _call("copy", torch.float32, table, 3)


def exchange_(table: Table, done: ctypes.c_int64) -> None:
    """Exchange two columns; sizes in bytes.

    Args:
        table: table of two columns.
        done: set to 1 by the kernel, so that the caller knows what happened even if an
            exception such as Ctrl-C arrives at the same time.
    """
    _call("exchange", torch.float32, table, 3, ctypes.byref(done))


def split_(table: Table, is_split: ctypes.c_int64) -> None:
    """Write bfloat16 averages into float32 weights; save the weights in two halves.

    Args:
        table: columns: weights; averages, which then hold the upper halves of the
            weights; int16 tensors for the lower halves.
        is_split: set to 1 by the kernel.
    """
    _call("split", torch.float32, table, 4, ctypes.byref(is_split))


def join_(table: Table, is_split: ctypes.c_int64) -> None:
    """Undo :func:`split_`; averages changed since then are rounded to nearest."""
    _call("join", torch.float32, table, 4, ctypes.byref(is_split))


def first_non_finite(table: Table, dtype: torch.dtype) -> int | None:
    """Return the first row with a NaN or an infinity, if any; one column."""
    row: int = _call("first_non_finite", dtype, table, 2)
    return None if row < 0 else row


def sgd_(table: Table, dtype: torch.dtype, numbers: SgdNumbers) -> None:
    """Step and average; columns: weight, gradient, velocity (if momentum), shadow."""
    columns = 5 if numbers.has_momentum else 4
    _call("sgd", dtype, table, columns, ctypes.byref(numbers))


def adam_(table: Table, dtype: torch.dtype, numbers: AdamNumbers) -> None:
    """Step and average; columns: weight, gradient, mean, square, shadow, step.

    The step counters are float32; the kernel increments them.
    """
    _call("adam", dtype, table, 7, ctypes.byref(numbers))


def prepare(name: str, dtype: torch.dtype, table: Table) -> Callable[..., Any]:
    """Return a kernel (``fetch`` or a variant of ``lerp``) bound to a persistent table.

    Call it with the number of threads and, except for ``fetch``, the weight. For small
    models, the overhead that this avoids is most of the cost of an update.
    """
    address, length = table.buffer_info()
    rows = length if name == "fetch" else length // 3
    return partial(getattr(library(dtype), name), address, rows)


def _call(
    name: str, dtype: torch.dtype, table: Table, columns: int, *numbers: object
) -> Any:
    address, length = table.buffer_info()
    kernel = getattr(library(dtype), name)
    return kernel(address, length // columns, torch.get_num_threads(), *numbers)
