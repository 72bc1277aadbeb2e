"""In-place arithmetic on lists of tensors with torch operations.

Everything here works on values, not on modules, and runs under ``torch.no_grad``.
Only this file calls torch's private functions for lists of tensors. Temporary memory is
bounded by a few chunks of :data:`CHUNK` elements, on accelerators by one of
:data:`BLOCK`, whatever the size of the tensors.
"""

from collections.abc import Iterator
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import increment_version

from switch_ema.averaging.kernels import native

Columns = list[list[Tensor]]
"""Lists of the same length: all weights, all gradients, and so on."""

CHUNK = 1 << 18
"""Elements per piece (1 MB in float32): small enough to fit into a core's cache."""

BLOCK = 1 << 24
"""Elements that an accelerator casts at once (64 MB in float32): enough to make the
time of launching a kernel negligible."""


def lerp_(shadow: list[Tensor], live: list[Tensor], weight: float) -> None:
    """``shadow += weight * (live - shadow)`` for pairs of one dtype and device."""
    torch._foreach_lerp_(shadow, live, weight)


def lerp_dense_(shadow: list[Tensor], live: list[Tensor], weight: float) -> None:
    """The same for CPU pairs of equal shape and memory order, which is not checked.

    For machines without a compiler; with one, :func:`native.lerp_` is faster.

    SGD with the live weights as gradient, weight decay -1 and learning rate ``-weight``
    computes exactly this, and torch's fused SGD does not set up an iterator per tensor.
    For weights of at least 0.5, the formula of plain lerp is more accurate.
    """
    if weight >= 0.5:
        lerp_(shadow, live, weight)
        return
    torch._fused_sgd_(
        shadow,
        live,
        [],
        weight_decay=-1.0,
        momentum=0.0,
        lr=-weight,
        dampening=0.0,
        nesterov=False,
        maximize=False,
        is_first_step=False,
    )


def lerp_cast_(shadow: list[Tensor], live: list[Tensor], weight: float) -> None:
    """The same for live tensors of another dtype or device."""
    for average, value in pieces(shadow, live):
        average.lerp_(value.to(average.device, average.dtype), weight)


def lerp_lists_(shadow: list[Tensor], live: list[Tensor], weight: float) -> None:
    """The same on an accelerator, with a few calls for all tensors together.

    Args:
        shadow: tensors of one dtype.
        live: as many tensors, of any dtype.
        weight: weight of the live tensors.
    """
    pairs = list(zip(shadow, live, strict=True))
    ready = [(average, value) for average, value in pairs if agree(average, value)]
    others = [pair for pair in pairs if not agree(*pair)]
    for block in _blocks(others):
        cast = [torch.empty_like(average) for average, _ in block]
        torch._foreach_copy_(cast, [value for _, value in block])
        averages = [average for average, _ in (*ready, *block)]
        lerp_(averages, [value for _, value in ready] + cast, weight)
        ready = []
    if ready:
        lerp_([average for average, _ in ready], [value for _, value in ready], weight)


def agree(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors have the same dtype and device."""
    return (a.dtype, a.device) == (b.dtype, b.device)


def lerp_finite_(shadow: list[Tensor], live: list[Tensor], weight: float) -> None:
    """The same, but ``shadow = live`` where either is not finite.

    For buffers such as masks of -inf, which would become NaN (``inf - inf``).
    """
    for average, value in pieces(shadow, live):
        value = value.to(average.device, average.dtype)
        is_finite = average.isfinite() & value.isfinite()
        moved = average.lerp(value, weight)
        average.copy_(torch.where(is_finite, moved, value))


def copy_where_not_finite_(shadow: list[Tensor], live: list[Tensor]) -> None:
    """``shadow = live`` where the shadow is not finite.

    Called after :func:`lerp_`, this has the effect of :func:`lerp_finite_`. All shadows
    must have one dtype; they are concatenated, so an accelerator needs few kernels.
    """
    for block in _blocks(list(zip(shadow, live, strict=True))):
        averages = [average for average, _ in block]
        kept = torch.cat([average.reshape(-1) for average in averages])
        values = torch.cat([value.reshape(-1) for _, value in block]).to(kept.dtype)
        mended = torch.where(kept.isfinite(), kept, values)
        parts = torch.split(mended, [average.numel() for average in averages])
        shaped = [part.view(a.shape) for part, a in zip(parts, averages, strict=True)]
        torch._foreach_copy_(averages, shaped)


def sgd_step_(
    weights: list[Tensor],
    gradients: list[Tensor],
    momenta: list[Tensor],
    **options: Any,
) -> None:
    """Take a step of SGD with torch's fused kernel and its options."""
    torch._fused_sgd_(weights, gradients, momenta, **options)


def adam_step_(
    columns: Columns, steps: list[Tensor], *, decoupled: bool, **options: Any
) -> None:
    """Take a step of Adam or AdamW with torch's fused kernel.

    Args:
        columns: weights, gradients, means, squares and, with amsgrad, their maxima.
        steps: number of steps of each weight, including this one.
        decoupled: whether weight decay is decoupled, as in AdamW.
        options: options of the kernel.
    """
    step_ = torch._fused_adamw_ if decoupled else torch._fused_adam_
    weights, gradients, means, squares, *rest = columns
    largest = rest[0] if rest else []
    step_(weights, gradients, means, squares, largest, steps, **options)


def count_(steps: list[Tensor]) -> None:
    """``steps += 1`` for a list of counters."""
    torch._foreach_add_(steps, 1)


def copy_(target: list[Tensor], source: list[Tensor]) -> None:
    """``target = source``, whatever the dtypes and devices."""
    by_memory, others = pairs_by_memory(target, source)
    if by_memory:
        native.copy_(byte_table(by_memory))
        increment_version([a for a, _ in by_memory])
    rest: Pairs = []
    for a, b in others:
        if a.is_conj() or a.is_neg():  # torch cannot write such a tensor in a list
            a.copy_(b)
        else:
            rest.append((a, b))
    if rest:
        torch._foreach_copy_([a for a, _ in rest], [b for _, b in rest])


def mean_(
    target: list[Tensor], sources: list[list[Tensor]], finite_only: bool = False
) -> None:
    """``target = mean(sources)``, summed in at least float32.

    With ``finite_only``, the target keeps its value where the mean is not finite.
    """
    for index, tensor in enumerate(target):
        dtype = torch.promote_types(tensor.dtype, torch.float32)
        total = sources[0][index].to(dtype, copy=True)
        for source in sources[1:]:
            total += source[index]
        mean = total / len(sources)
        if finite_only:
            mean = torch.where(mean.isfinite(), mean, tensor.to(dtype))
        tensor.copy_(mean)


def first_non_finite(tensors: list[Tensor]) -> int | None:
    """Return the index of the first tensor that holds a NaN or an infinity."""
    kinds: dict[tuple[torch.dtype, torch.device], list[int]] = {}
    for index, tensor in enumerate(tensors):
        kinds.setdefault((tensor.dtype, tensor.device), []).append(index)
    found = []
    others = []
    for (dtype, _), indices in kinds.items():
        members = [tensors[index] for index in indices]
        if native.is_available(dtype) and all(map(is_plain, members)):
            table = native.table_of([members], map(Tensor.numel, members))
            at = native.first_non_finite(table, dtype)
            found += [] if at is None else [indices[at]]
        else:
            others.append(indices)
    sums = [_sums([tensors[index] for index in indices]) for indices in others]
    if not _are_finite(sums):
        suspects = chain.from_iterable(others)
        found += [i for i in suspects if not bool(tensors[i].isfinite().all())]
    return min(found, default=None)


def _sums(tensors: list[Tensor]) -> list[Tensor]:
    """Sum each tensor; on an accelerator, the absolute values in one call."""
    if tensors[0].device.type == "cpu":
        return [tensor.sum() for tensor in tensors]
    return list(torch._foreach_norm(tensors, 1))


def _are_finite(kinds: list[list[Tensor]]) -> bool:
    """Whether all sums, and so all their terms, are finite; one sync per device.

    Each list has one dtype and device.
    """
    flags: dict[torch.device, list[Tensor]] = {}
    for sums in kinds:
        is_finite = torch.stack(sums).isfinite().all()
        flags.setdefault(is_finite.device, []).append(is_finite)
    return all(bool(torch.stack(flag).all()) for flag in flags.values())


def is_dense(tensor: Tensor) -> bool:
    """Whether the elements fill a block of memory without gaps, in any order."""
    return (
        tensor.is_contiguous()
        or tensor.is_contiguous(memory_format=torch.channels_last)
        or bool(torch.ops.aten.is_non_overlapping_and_dense(tensor))
    )


PLAIN_TYPES = (Tensor, nn.Parameter)
"""Types whose memory is the tensor's value; a subclass may keep it elsewhere."""


def is_plain(tensor: Tensor) -> bool:
    """Whether a tensor's memory is its value: on the CPU, dense, not a subclass."""
    return (
        type(tensor) in PLAIN_TYPES
        and tensor.is_cpu
        and tensor.layout == torch.strided
        and not (tensor.is_neg() or tensor.is_conj())
        and is_dense(tensor)
    )


def in_memory_order(tensor: Tensor) -> Tensor:
    """View a dense tensor as one-dimensional, in memory order."""
    return tensor.as_strided((tensor.numel(),), (1,))


Pairs = list[tuple[Tensor, Tensor]]


def pieces(
    first: list[Tensor], second: list[Tensor], most: int = CHUNK
) -> Iterator[tuple[Tensor, Tensor]]:
    """Cut pairs of tensors of one shape into pairs of at most ``most`` elements."""
    for a, b in zip(first, second, strict=True):
        if a.numel() <= most:
            yield a, b
        elif a.stride() == b.stride() and is_dense(a):
            flat = in_memory_order(a), in_memory_order(b)
            yield from zip(*(torch.split(t, most) for t in flat), strict=True)
        else:
            yield from _cut(a, b, most)


def _cut(a: Tensor, b: Tensor, most: int) -> Iterator[tuple[Tensor, Tensor]]:
    if a.numel() <= most:
        yield a, b
        return
    longest = max(range(a.ndim), key=lambda dim: a.shape[dim])
    half = (a.shape[longest] + 1) // 2
    parts = (torch.split(t, half, longest) for t in (a, b))
    for x, y in zip(*parts, strict=True):
        yield from _cut(x, y, most)


def _blocks(pairs: Pairs) -> Iterator[Pairs]:
    """Group pairs into lists of at most ``BLOCK`` elements."""
    block: Pairs = []
    size = 0
    for a, b in pieces([a for a, _ in pairs], [b for _, b in pairs], BLOCK):
        if block and size + a.numel() > BLOCK:
            yield block
            block, size = [], 0
        block.append((a, b))
        size += a.numel()
    if block:
        yield block


def pairs_by_memory(first: list[Tensor], second: list[Tensor]) -> tuple[Pairs, Pairs]:
    """Separate the pairs that can be handled as bytes from all others."""
    by_memory: Pairs = []
    others: Pairs = []
    is_native = native.is_available()
    for a, b in zip(first, second, strict=True):
        fits = is_native and a.dtype == b.dtype and is_plain(a) and is_plain(b)
        same = fits and a.shape == b.shape and a.stride() == b.stride()
        (by_memory if same else others).append((a, b))
    return by_memory, others


def byte_table(pairs: Pairs) -> native.Table:
    """Build the table of such pairs for the kernels that work on bytes."""
    columns = [a for a, _ in pairs], [b for _, b in pairs]
    return native.table_of(columns, (a.numel() * a.element_size() for a in columns[0]))
