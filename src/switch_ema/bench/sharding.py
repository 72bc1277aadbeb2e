"""One worker's part of the data, and what data-parallel workers exchange.

A single process has the whole: ``Shard()`` takes all examples and exchanges nothing, so
tasks use a shard without asking how many workers there are.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from switch_ema.bench.loaders import BatchPart

_T = TypeVar("_T")


class Shard(BatchPart):
    """A worker's part of the data, and its exchange with the other workers.

    Every method that gathers or sums must be called by all workers.
    """

    def share(self, count: int) -> slice:
        """Return this worker's contiguous part of ``count`` examples.

        >>> [Shard(rank, 3).share(8) for rank in range(3)]
        [slice(0, 3, None), slice(3, 6, None), slice(6, 8, None)]
        """
        least, more = divmod(count, self.ranks)
        start = self.rank * least + min(self.rank, more)
        return slice(start, start + least + (self.rank < more))

    def gather(self, tensor: Tensor) -> Tensor:
        """Concatenate all workers' rows, in order; gradients flow back to each worker.

        Workers may have different numbers of rows.
        """
        if self.ranks == 1:
            return tensor
        gathered: Tensor = _Gather.apply(_on_backend(tensor), self)
        return gathered.to(tensor.device)

    def collect(self, tensor: Tensor) -> Tensor:
        """Concatenate all workers' rows on the first one; the others keep their own.

        Without gradients.
        """
        if self.ranks == 1:
            return tensor
        own = _on_backend(tensor.detach())
        counts = _row_counts(own, self)
        padded = _padded(own, max(counts))
        found = [torch.empty_like(padded) for _ in counts] if self.rank == 0 else None
        dist.gather(padded, found)
        if found is None:
            return tensor
        return _unpadded(found, counts).to(tensor.device)

    def from_first(self, compute: Callable[[], _T]) -> _T:
        """Let the first worker compute a value; return it on all workers."""
        if self.ranks == 1:
            return compute()
        found: list[Any] = [compute() if self.rank == 0 else None]
        dist.broadcast_object_list(found, src=0)
        value: _T = found[0]
        return value

    def sum(self, tensor: Tensor) -> Tensor:
        """Add up the workers' tensors; gradients flow back to each worker."""
        if self.ranks == 1:
            return tensor
        summed: Tensor = _Sum.apply(_on_backend(tensor))
        return summed.to(tensor.device)

    def mean(self, tensor: Tensor, count: int) -> Tensor:
        """Average the workers' tensors, weighted by their numbers of examples."""
        if self.ranks == 1:
            return tensor
        total = self.sum(torch.tensor([float(count)], device=tensor.device))
        return self.sum(tensor * count) / total

    def balance(self, count: int, examples: int) -> float:
        """Return a factor for a loss divided by a number of objects, not of examples.

        It turns a mean over this worker's objects into its share of the mean over all
        workers' objects: the loop weighs workers by their numbers of examples.

        Args:
            count: This worker's objects; the loss is divided by them, at least by 1.
            examples: Its examples, in which they are.
        """
        if self.ranks == 1:
            return 1.0
        sums = self.sum(torch.tensor([float(count), float(examples)]))
        total, whole = float(sums[0]), float(sums[1])
        return max(count, 1) * whole / (examples * max(total, 1.0))

    def gather_items(self, items: Sequence[_T]) -> list[_T]:
        """Concatenate all workers' lists, in order; the items are pickled."""
        if self.ranks == 1:
            return list(items)
        found: list[list[_T]] = [[] for _ in range(self.ranks)]
        dist.all_gather_object(found, list(items))
        return [item for part in found for item in part]


class _Gather(torch.autograd.Function):
    """Gathers rows; the gradient of a row is the sum over the workers' losses."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, shard: Shard) -> Tensor:
        counts = _row_counts(tensor, shard)
        padded = _padded(tensor, max(counts))
        found = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(found, padded)
        ctx.start = sum(counts[: shard.rank])
        ctx.count = len(tensor)
        return _unpadded(found, counts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        gradient = gradients[0].clone(memory_format=torch.contiguous_format)
        dist.all_reduce(gradient)
        return gradient[ctx.start : ctx.start + ctx.count], None


class _Sum(torch.autograd.Function):
    """Adds tensors up; each worker's loss has the gradient of every summand."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        total = tensor.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        gradient = gradients[0].clone(memory_format=torch.contiguous_format)
        dist.all_reduce(gradient)
        return gradient


def _on_backend(tensor: Tensor) -> Tensor:
    """Move a tensor to a device that the workers' backend can send from."""
    return tensor.cuda() if dist.get_backend() == "nccl" else tensor


def _padded(tensor: Tensor, rows: int) -> Tensor:
    """Add rows of zeros, since collectives need equal shapes."""
    padded = tensor.new_zeros((rows, *tensor.shape[1:]))
    padded[: len(tensor)] = tensor
    return padded


def _unpadded(found: list[Tensor], counts: list[int]) -> Tensor:
    return torch.cat([part[:n] for part, n in zip(found, counts, strict=True)])


def _row_counts(tensor: Tensor, shard: Shard) -> list[int]:
    own = torch.tensor([len(tensor)], device=tensor.device)
    found = [torch.empty_like(own) for _ in range(shard.ranks)]
    dist.all_gather(found, own)
    return [int(count) for count in found]
