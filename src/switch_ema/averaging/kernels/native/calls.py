"""The kernels of kernels.c as functions of tables of addresses.

The kernels do not check a table. Whoever makes one has checked that its tensors are on
the CPU, have one dtype and no gaps in memory, and that the tensors of a row have the
same strides; and keeps them alive.
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
"""Addresses by column, then the sizes of the rows."""

_LINE = 64
"""Bytes of a cache line."""

_LINES = 2, 4, 2
"""Cache lines that are read of a Python object, of its tensor and of its storage."""


class SgdNumbers(ctypes.Structure):
    """The numbers of SGD with its average, as kernels.c declares them."""

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
    """The numbers of Adam and AdamW with their average, as kernels.c declares them."""

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
    """List the cache lines that hold the metadata of tensors, not their values.

    Asking a tensor for its address or shape reads its Python object, the C++ tensor
    and its storage: a handful of cache lines in different places of the memory.
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
) -> None:
    """``shadow += weight * (live - shadow)``; columns: shadow, live.

    With ``finite_only``, ``shadow = live`` where one of the two is not finite.
    """
    _call("lerp_finite" if finite_only else "lerp", dtype, table, 3, weight)


def lerp_dithered_(
    table: Table, live: torch.dtype, weight: float, phases: Tensor, offset: int
) -> None:
    """The same for bfloat16 shadows of float32 or bfloat16 weights.

    Args:
        table: of contiguous tensors.
        live: the dtype of the weights.
        weight: the weight of the live tensors, ``1 - decay``.
        phases: int32, one threshold for each element of a shadow, repeated.
        offset: what is added to all thresholds.
    """
    is_half = live == torch.bfloat16
    numbers = _DitherNumbers(weight, phases.data_ptr(), phases.numel(), offset, is_half)
    _call("lerp_dithered", torch.float32, table, 3, ctypes.byref(numbers))


def copy_(table: Table) -> None:
    """``target = source``; columns: target, source; the sizes are in bytes."""
    _call("copy", torch.float32, table, 3)


def exchange_(table: Table, done: ctypes.c_int64) -> None:
    """Exchange two columns; the sizes are in bytes.

    Args:
        table: see above.
        done: is 1 as soon as it has happened, which an exception that arrives at the
            same time (Ctrl-C) leaves open.
    """
    _call("exchange", torch.float32, table, 3, ctypes.byref(done))


def split_(table: Table, is_split: ctypes.c_int64) -> None:
    """Put bfloat16 averages into float32 weights, and keep the weights by halves.

    Args:
        table: columns of weights, of averages, which then hold the upper halves of the
            weights, and of int16 for the lower halves.
        is_split: is 1 as soon as it has happened.
    """
    _call("split", torch.float32, table, 4, ctypes.byref(is_split))


def join_(table: Table, is_split: ctypes.c_int64) -> None:
    """Undo :func:`split_`; averages that have changed are rounded to the nearest."""
    _call("join", torch.float32, table, 4, ctypes.byref(is_split))


def first_non_finite(table: Table, dtype: torch.dtype) -> int | None:
    """Return the first row that holds a NaN or an infinity; one column."""
    row: int = _call("first_non_finite", dtype, table, 2)
    return None if row < 0 else row


def sgd_(table: Table, dtype: torch.dtype, numbers: SgdNumbers) -> None:
    """Step and average; columns: weight, gradient, velocity (with momentum), shadow."""
    columns = 5 if numbers.has_momentum else 4
    _call("sgd", dtype, table, columns, ctypes.byref(numbers))


def adam_(table: Table, dtype: torch.dtype, numbers: AdamNumbers) -> None:
    """Step and average; columns: weight, gradient, mean, square, shadow, step.

    The steps are float32 and counted here.
    """
    _call("adam", dtype, table, 7, ctypes.byref(numbers))


def prepare(name: str, dtype: torch.dtype, table: Table) -> Callable[..., Any]:
    """Return a kernel (``lerp`` and its kinds, ``fetch``) bound to a table that stays.

    Call it with the number of threads and, but for ``fetch``, the weight. An update
    saves the way through this file, which is most of what it costs for small models.
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
