"""In-place arithmetic over lists of tensors: the only place that moves memory.

Everything here works on values, not on modules, and runs under ``torch.no_grad``.
Temporary memory is bounded by a few chunks of :data:`CHUNK` elements, whatever
the size of the tensors.
"""

import functools
from collections.abc import Iterator

import torch
from torch import Tensor

CHUNK = 1 << 18
"""Elements per piece (1 MB in float32): small enough to stay in a core's cache."""


def lerp_(shadow: list[Tensor], live: list[Tensor], weight: float) -> None:
    """``shadow += weight * (live - shadow)`` for pairs of one dtype and device."""
    torch._foreach_lerp_(shadow, live, weight)


def lerp_dense_(shadow: list[Tensor], live: list[Tensor], weight: float) -> None:
    """The same for pairs on the CPU of one shape and one order in memory, unchecked.

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
    for average, value in _pieces(shadow, live):
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
    for average, value in _pieces(shadow, live):
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
    golden = int(step * 0.6180339887498949 * 65536) & 0xFFFF
    return (_phases(device) + golden).bitwise_and_(0xFFFF)


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
def _phases(device: torch.device) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    values = torch.randint(65536, (CHUNK,), generator=generator, dtype=torch.int32)
    return values.to(device)


def copy_(target: list[Tensor], source: list[Tensor]) -> None:
    """``target = source``, whatever the dtypes and devices."""
    if target:
        torch._foreach_copy_(target, source)


def mean_(target: list[Tensor], sources: list[list[Tensor]]) -> None:
    """``target = mean(sources)``, summed in at least float32."""
    for index, tensor in enumerate(target):
        dtype = torch.promote_types(tensor.dtype, torch.float32)
        total = sources[0][index].to(dtype, copy=True)
        for source in sources[1:]:
            total += source[index]
        tensor.copy_(total / len(sources))


def exchange_(first: list[Tensor], second: list[Tensor]) -> None:
    """Exchange contents pairwise through a small buffer, completely or not at all.

    An exception on the way, Ctrl-C included, undoes what was done, so that nobody
    is left with a model that is half averaged.
    """
    exchange = _Exchange()
    pairs = list(_pieces(first, second))
    try:
        for done, (a, b) in enumerate(pairs):
            exchange.run(a, b)
            exchange.done = done + 1, ""
    except BaseException:
        done, copying = exchange.done
        if copying:
            exchange.finish(*pairs[done])
        for a, b in pairs[: done + bool(copying)]:
            exchange.run(a, b)
        raise


class _Exchange:
    """An exchange on its way, which knows what a half exchanged pair lacks."""

    def __init__(self) -> None:
        self.done: tuple[int, str] = 0, ""
        """Pairs exchanged, and what is being copied now: in one assignment, which
        cannot be torn."""
        self._buffers: dict[tuple[torch.dtype, torch.device], Tensor] = {}
        self._kept = torch.empty(0)

    def run(self, a: Tensor, b: Tensor) -> None:
        """Exchange one pair."""
        done, _ = self.done
        self._kept = self._room(a).copy_(a)
        self.done = done, "b to a"
        a.copy_(b)
        self.done = done, "a to b"
        b.copy_(self._kept)

    def finish(self, a: Tensor, b: Tensor) -> None:
        """Exchange the rest of a pair; a copy made twice does no harm."""
        if self.done[1] == "b to a":
            a.copy_(b)
        b.copy_(self._kept)

    def _room(self, piece: Tensor) -> Tensor:
        kind = piece.dtype, piece.device
        if kind not in self._buffers:
            self._buffers[kind] = piece.new_empty(CHUNK)
        return self._buffers[kind][: piece.numel()].view(piece.shape)


def first_non_finite(tensors: list[Tensor]) -> int | None:
    """Return the index of the first tensor that holds a NaN or an infinity."""
    # A sum is finite only if every term is: one cheap read, exact check on suspicion.
    sums: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for tensor in tensors:
        sums.setdefault((tensor.dtype, tensor.device), []).append(tensor.sum())
    if all(bool(torch.stack(group).isfinite().all()) for group in sums.values()):
        return None
    for index, tensor in enumerate(tensors):
        if not bool(tensor.isfinite().all()):
            return index
    return None


def is_dense(tensor: Tensor) -> bool:
    """Whether the elements fill their memory without gaps, in any order."""
    return bool(torch.ops.aten.is_non_overlapping_and_dense(tensor))


def in_memory_order(tensor: Tensor) -> Tensor:
    """View a dense tensor as one dimension, in the order of its memory."""
    return tensor.as_strided((tensor.numel(),), (1,))


def _pieces(
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
