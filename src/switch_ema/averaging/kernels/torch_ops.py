"""In-place arithmetic over lists of tensors: the only place that moves memory.

Everything here works on values, not on modules, and runs under ``torch.no_grad``.
Temporary memory is bounded by a few chunks of :data:`CHUNK` elements, whatever
the size of the tensors.
"""

import functools
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.autograd.graph import increment_version

from switch_ema.averaging.kernels import native

CHUNK = 1 << 18
"""Elements per piece (1 MB in float32): small enough to stay in a core's cache."""


def lerp_(shadow: list[Tensor], live: list[Tensor], weight: float) -> None:
    """``shadow += weight * (live - shadow)`` for pairs of one dtype and device."""
    torch._foreach_lerp_(shadow, live, weight)


def lerp_dense_(shadow: list[Tensor], live: list[Tensor], weight: float) -> None:
    """The same for pairs on the CPU of one shape and one order in memory, unchecked.

    For machines without a compiler; :func:`native.lerp_` does it in one region.

    SGD with the live weights as gradient, a weight decay of -1 and a learning rate of
    ``-weight`` is this very formula, and torch's fused SGD runs it without setting up
    an iterator per tensor. Above one half the plain kernel has the more exact form.
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
    """The same where the live tensors have another dtype or device."""
    for average, value in pieces(shadow, live):
        average.lerp_(value.to(average.device, average.dtype), weight)


def lerp_dithered_(
    shadow: list[Tensor], live: list[Tensor], weight: float, step: int
) -> None:
    """The same for bfloat16 shadows, rounded so that they do not stall.

    Near the end of training an update is far below half a unit in the last place
    of bfloat16, and rounding to nearest would discard it for ever. Here the sum is
    taken in float32 and rounded up or down against a threshold that moves through
    the unit with ``step`` (see :func:`round_to_bfloat16_`).
    """
    thresholds: dict[torch.device, Tensor] = {}
    for average, value in pieces(shadow, live):
        if average.device not in thresholds:
            thresholds[average.device] = rounding_thresholds(average.device, step)
        exact = average.to(torch.float32, memory_format=torch.contiguous_format)
        exact.lerp_(value.to(average.device, torch.float32), weight)
        average.copy_(round_to_bfloat16_(exact, thresholds[average.device]))


def rounding_thresholds(device: torch.device, step: int) -> Tensor:
    """Where in the last place of bfloat16 a step rounds up, per element of a piece.

    A fixed random phase per element plus multiples of the golden ratio per step
    gives each element a low-discrepancy sequence of thresholds: the accumulated
    rounding error stays within a few units instead of growing like a random walk,
    and the result depends on ``step`` alone, so that resuming is exact.
    """
    return (rounding_phases(device) + rounding_offset(step)).bitwise_and_(0xFFFF)


def rounding_offset(step: int) -> int:
    """Return how far the thresholds have moved by a step."""
    return int(step * 0.6180339887498949 * 65536) & 0xFFFF


def round_to_bfloat16_(exact: Tensor, thresholds: Tensor) -> Tensor:
    """Round float32 values, in place, to values that bfloat16 can hold."""
    bits = exact.view(torch.int32)
    thresholds = thresholds[: exact.numel()].view(exact.shape)
    # Adding to the bits of a NaN can wrap around to a number: leave those alone.
    # Asking for the sum would make a GPU wait, so there this is done in any case.
    if exact.device.type != "cpu" or not bool(exact.sum().isfinite()):
        thresholds = torch.where(exact.isfinite(), thresholds, 0)
    bits.add_(thresholds).bitwise_and_(-65536)
    return exact


@functools.lru_cache(maxsize=8)
def rounding_phases(device: torch.device) -> Tensor:
    """Return the fixed part of the thresholds."""
    generator = torch.Generator("cpu").manual_seed(0)  # whatever the default device
    values = torch.randint(
        65536, (CHUNK,), generator=generator, dtype=torch.int32, device="cpu"
    )
    return values.to(device)


def copy_(target: list[Tensor], source: list[Tensor]) -> None:
    """``target = source``, whatever the dtypes and devices."""
    by_memory, others = pairs_by_memory(target, source)
    if by_memory:
        native.copy_(byte_table(by_memory))
        increment_version([a for a, _ in by_memory])
    if others:
        torch._foreach_copy_([a for a, _ in others], [b for _, b in others])


def mean_(target: list[Tensor], sources: list[list[Tensor]]) -> None:
    """``target = mean(sources)``, summed in at least float32."""
    for index, tensor in enumerate(target):
        dtype = torch.promote_types(tensor.dtype, torch.float32)
        total = sources[0][index].to(dtype, copy=True)
        for source in sources[1:]:
            total += source[index]
        tensor.copy_(total / len(sources))


def first_non_finite(tensors: list[Tensor]) -> int | None:
    """Return the index of the first tensor that holds a NaN or an infinity."""
    kinds: dict[tuple[torch.dtype, torch.device], list[int]] = {}
    for index, tensor in enumerate(tensors):
        kinds.setdefault((tensor.dtype, tensor.device), []).append(index)
    found = []
    for (dtype, _), indices in kinds.items():
        members = [tensors[index] for index in indices]
        if native.is_available(dtype) and all(map(is_plain, members)):
            table = native.table_of([members], map(Tensor.numel, members))
            at = native.first_non_finite(table, dtype)
        else:
            at = _first_non_finite_of_a_kind(members)
        if at is not None:
            found.append(indices[at])
    return min(found, default=None)


def _first_non_finite_of_a_kind(tensors: list[Tensor]) -> int | None:
    # A sum is finite only if every term is: one cheap read, exact check on suspicion.
    if bool(torch.stack([tensor.sum() for tensor in tensors]).isfinite().all()):
        return None
    finite = (bool(tensor.isfinite().all()) for tensor in tensors)
    return next((index for index, is_fine in enumerate(finite) if not is_fine), None)


def is_dense(tensor: Tensor) -> bool:
    """Whether the elements fill their memory without gaps, in any order."""
    return bool(torch.ops.aten.is_non_overlapping_and_dense(tensor))


PLAIN_TYPES = (Tensor, nn.Parameter)
"""Of tensors whose memory is their value; that of subclasses may be elsewhere."""


def is_plain(tensor: Tensor) -> bool:
    """Whether a tensor's memory is its value: on the CPU, dense and no subclass."""
    return (
        type(tensor) in PLAIN_TYPES
        and tensor.is_cpu
        and tensor.layout == torch.strided
        and not (tensor.is_neg() or tensor.is_conj())
        and is_dense(tensor)
    )


def in_memory_order(tensor: Tensor) -> Tensor:
    """View a dense tensor as one dimension, in the order of its memory."""
    return tensor.as_strided((tensor.numel(),), (1,))


def pieces(
    first: list[Tensor], second: list[Tensor]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Cut pairs of tensors of one shape into pairs of at most ``CHUNK`` elements."""
    for a, b in zip(first, second, strict=True):
        if a.numel() <= CHUNK:
            yield a, b
        elif a.stride() == b.stride() and is_dense(a):
            flat = in_memory_order(a), in_memory_order(b)
            yield from zip(*(torch.split(t, CHUNK) for t in flat), strict=True)
        else:
            yield from _cut(a, b)


def _cut(a: Tensor, b: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    if a.numel() <= CHUNK:
        yield a, b
        return
    longest = max(range(a.ndim), key=lambda dim: a.shape[dim])
    half = (a.shape[longest] + 1) // 2
    parts = (torch.split(t, half, longest) for t in (a, b))
    for x, y in zip(*parts, strict=True):
        yield from _cut(x, y)


Pairs = list[tuple[Tensor, Tensor]]


def pairs_by_memory(first: list[Tensor], second: list[Tensor]) -> tuple[Pairs, Pairs]:
    """Tell apart the pairs that can be treated as bytes, and all others."""
    by_memory: Pairs = []
    others: Pairs = []
    is_native = native.is_available()
    for a, b in zip(first, second, strict=True):
        fits = is_native and a.dtype == b.dtype and is_plain(a) and is_plain(b)
        same = fits and a.shape == b.shape and a.stride() == b.stride()
        (by_memory if same else others).append((a, b))
    return by_memory, others


def byte_table(pairs: Pairs) -> native.Table:
    """Return the table of pairs by memory for the kernels that go by bytes."""
    columns = [a for a, _ in pairs], [b for _, b in pairs]
    return native.table_of(columns, (a.numel() * a.element_size() for a in columns[0]))
