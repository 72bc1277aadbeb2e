"""Exchanges the contents of tensors in place, completely or not at all."""

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from switch_ema.averaging.kernels import native
from switch_ema.averaging.kernels.spare_memory import SpareMemory
from switch_ema.averaging.kernels.torch_ops import (
    CHUNK,
    byte_table,
    pairs_by_memory,
    pieces,
)


class Exchanged:
    """Whether two lists are exchanged; correct at any moment, even on a Ctrl-C."""

    def __init__(self) -> None:
        self.yes = False


def exchange_(
    first: list[Tensor],
    second: list[Tensor],
    now: Exchanged,
    tables: Sequence[native.Table] = (),
) -> None:
    """Exchange contents pairwise through a small buffer, completely or not at all.

    Any exception, including Ctrl-C, rolls back what was exchanged, so the model is
    never half averaged.

    Args:
        first: tensors.
        second: as many tensors, of the same shapes and dtypes.
        now: inverted once all is exchanged.
        tables: further pairs as checked tables of addresses and sizes.
    """
    before = now.yes
    by_memory, others = pairs_by_memory(first, second)
    own = [byte_table(by_memory)] if by_memory else []
    at_once = [(table, ctypes.c_int64(0)) for table in (*own, *tables)]
    exchange = _Exchange()
    pairs = list(pieces([a for a, _ in others], [b for _, b in others]))
    try:
        for done, (a, b) in enumerate(pairs):
            exchange.run(a, b)
            exchange.done = done + 1, ""
        for table, is_done in at_once:
            native.exchange_(table, is_done)
        increment_version([tensor for pair in by_memory for tensor in pair])
        now.yes = not before
    except BaseException:
        for table, is_done in at_once:
            if is_done.value:
                native.exchange_(table, ctypes.c_int64(0))
        done, copying = exchange.done
        if copying:
            exchange.finish(*pairs[done])
        for a, b in pairs[: done + bool(copying)]:
            exchange.run(a, b)
        now.yes = before
        raise


class Halves:
    """bfloat16 averages in float32 tensors, whose own values are kept as two halves.

    The upper 16 bits of each weight go where its average was, so only the lower 16 bits
    need new memory: half of what a copy of the weights would take.

    Args:
        lives: contiguous float32 tensors on the CPU.
        averages: as many in bfloat16.
        spare: memory for the lower halves.
    """

    def __init__(
        self, lives: list[Tensor], averages: list[Tensor], spare: SpareMemory
    ) -> None:
        self._lives, self._averages = lives, averages
        # Keeps the memory in the table alive even if the tensors get other memory.
        self._memory = [tensor.detach() for tensor in lives]
        sizes = [tensor.numel() for tensor in lives]
        self._spare = spare
        self._lower = torch.split(spare.take(sum(sizes)), sizes)
        self._table = native.table_of([lives, averages, self._lower], sizes)
        self._is_split = ctypes.c_int64(0)

    def split(self) -> None:
        """Write the averages into the tensors."""
        if not self._is_split.value:
            native.split_(self._table, self._is_split)
            increment_version(self._lives)

    def join(self) -> list[Tensor]:
        """Restore both; averages that were changed are rounded to nearest.

        Returns:
            The original memory of the tensors, with their original values.
        """
        if self._is_split.value:
            native.join_(self._table, self._is_split)
            increment_version([*self._lives, *self._averages])
            self._spare.give_back()
        return self._memory

    def original(self, index: int) -> Tensor:
        """Return a copy of the original values of one tensor."""
        if not self._is_split.value:
            return self._memory[index].clone()
        whole = self._averages[index].view(torch.int16).to(torch.int32) << 16
        whole |= self._lower[index].view(whole.shape).to(torch.int32) & 0xFFFF
        return whole.view(torch.float32)


class _Exchange:
    """An exchange in progress, which can complete a half-exchanged pair."""

    def __init__(self) -> None:
        self.done: tuple[int, str] = 0, ""
        """Pairs exchanged and the copy in progress, in one attribute, so that a Ctrl-C
        cannot come between the two."""
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
        """Complete the exchange of a pair; repeating a copy does no harm."""
        if self.done[1] == "b to a":
            a.copy_(b)
        b.copy_(self._kept)

    def _room(self, piece: Tensor) -> Tensor:
        kind = piece.dtype, piece.device
        if kind not in self._buffers:
            self._buffers[kind] = piece.new_empty(CHUNK)
        return self._buffers[kind][: piece.numel()].view(piece.shape)
