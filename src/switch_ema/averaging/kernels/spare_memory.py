"""Memory that is needed now and then, and that the system may take back in between."""

import contextlib
import mmap
import sys

import torch
from torch import Tensor

# Below this size in bytes, the allocator keeps the pages itself.
_LEAST = 1 << 24


class SpareMemory:
    """A block that keeps its pages after use, unless the system needs them.

    Getting and returning the pages of a large block takes longer than filling it. Linux
    can mark them as free instead (``MADV_FREE``): under memory pressure they are gone,
    otherwise the next use finds them in place. Until then they count as memory of the
    process. Other systems return the block at once.
    """

    def __init__(self) -> None:
        self._block: mmap.mmap | None = None

    def take(self, count: int) -> Tensor:
        """Return ``count`` int16 numbers of any value."""
        size = 2 * count
        if size < _LEAST or sys.platform != "linux":
            return torch.empty(count, dtype=torch.int16)
        if self._block is None or len(self._block) < size:
            # Only private pages can be marked as free.
            private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
            self._block = mmap.mmap(-1, size, flags=private)
        return torch.frombuffer(self._block, dtype=torch.int16, count=count)

    def give_back(self) -> None:
        """Let the system take the pages; what was taken must not be read any more."""
        if self._block is not None:
            with contextlib.suppress(OSError):  # a kernel without MADV_FREE
                self._block.madvise(mmap.MADV_FREE)
