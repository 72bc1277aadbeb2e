"""Batches of equal size."""

from torch import Tensor

from switch_ema.bench.task import Batches


class FullBatches(Batches):
    """Shuffled mini-batches, without a last one that is not full.

    Batch normalisation cannot work with one image, and is noisier with few.
    """

    def __init__(
        self, tensors: tuple[Tensor, ...], size: int, seed: int, *, epoch: int
    ) -> None:
        size = min(size, len(tensors[0]))
        super().__init__(tensors, size, seed, epoch=epoch)
        self._order = self._order[: len(self._order) // size * size]
