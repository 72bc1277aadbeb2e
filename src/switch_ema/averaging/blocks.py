"""Going through lists of tensors in blocks that fit into the cache."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from switch_ema.averaging import kernels

BLOCK = 1 << 20
"""Elements per block: parameter, gradient, two moments and shadow are 20 MB.

Smaller blocks would fit into nearer caches, but between two calls the threads go to
sleep, and waking them costs more than that saves.
"""

Columns = list[list[Tensor]]
"""Lists of the same length: all parameters, all gradients, and so on."""


@dataclass
class StepAverage:
    """What an averager wants to be done within the coming step of an optimizer."""

    weight: float
    """Of the live weights: ``shadow += weight * (live - shadow)``."""
    shadows: dict[Tensor, Tensor]
    """By parameter, of the same form and on the CPU. The step takes out what it has
    averaged."""

    def finish(self) -> None:
        """Average what the step has not updated."""
        if self.shadows:
            kernels.lerp_dense_(
                list(self.shadows.values()), list(self.shadows), self.weight
            )
            self.shadows.clear()


@dataclass(frozen=True)
class Work:
    """What an optimizer updates with one kind of kernel call."""

    columns: Columns
    """The parameters first."""
    kernel: Callable[[Columns, list[Tensor]], None]
    """Updates the columns, or the same part of each, given their steps."""
    steps: list[Tensor] = field(default_factory=list)
    """For each row, if the kernel wants them."""
    formula: Callable[..., None] | None = None
    """What the kernel does to a row, for a compiler; None if it cannot be said."""
    numbers: Callable[[list[int]], list[float | None]] = lambda rows: []
    """What the formula depends on besides, common to these rows; None if it is not."""

    def without(self, rows: set[int]) -> "Work":
        """Return the work on the other rows."""
        left = [i for i in range(len(self.columns[0])) if i not in rows]
        columns, steps, _ = _gather(self, left, [None] * len(self.columns[0]))
        return replace(self, columns=columns, steps=steps, formula=None)


def step_and_average(work: Work, average: StepAverage) -> None:
    """Update block by block, and average each block while it is in the cache."""
    shadows: list[Tensor | None] = [
        average.shadows.pop(parameter, None) for parameter in work.columns[0]
    ]
    for columns, steps, targets in _blocks(work, shadows):
        work.kernel(columns, steps)
        pairs = [
            (target, live)
            for target, live in zip(targets, columns[0], strict=True)
            if target is not None
        ]
        if pairs:
            averages, lives = map(list, zip(*pairs, strict=True))
            kernels.lerp_dense_(averages, lives, average.weight)


def _blocks(
    work: Work, shadows: list[Tensor | None]
) -> Iterator[tuple[Columns, list[Tensor], list[Tensor | None]]]:
    """Cut the rows into blocks: several small ones, or a part of a large one."""
    rows: list[int] = []
    size = 0
    for i, parameter in enumerate(work.columns[0]):
        if parameter.numel() > BLOCK and _have_one_form(work.columns, i):
            yield from _cut(work, i, shadows[i])
            continue
        if rows and size + parameter.numel() > BLOCK:
            yield _gather(work, rows, shadows)
            rows, size = [], 0
        rows.append(i)
        size += parameter.numel()
    if rows:
        yield _gather(work, rows, shadows)


def _gather(
    work: Work, rows: list[int], shadows: list[Tensor | None]
) -> tuple[Columns, list[Tensor], list[Tensor | None]]:
    columns = [[column[i] for i in rows] for column in work.columns]
    steps = [work.steps[i] for i in rows] if work.steps else []
    return columns, steps, [shadows[i] for i in rows]


def _cut(
    work: Work, row: int, shadow: Tensor | None
) -> Iterator[tuple[Columns, list[Tensor], list[Tensor | None]]]:
    step = work.steps[row : row + 1]
    pieces = zip(*(_split(column[row]) for column in work.columns), strict=True)
    targets = iter(_split(shadow)) if shadow is not None else None
    for piece in pieces:
        target = next(targets) if targets is not None else None
        yield [[part] for part in piece], step, [target]


def _split(tensor: Tensor) -> tuple[Tensor, ...]:
    return torch.split(kernels.in_memory_order(tensor.detach()), BLOCK)


def _have_one_form(columns: Columns, row: int) -> bool:
    """Whether a tensor's companions lie in memory as it does."""
    first = columns[0][row]
    return kernels.is_dense(first) and all(
        column[row].stride() == first.stride() for column in columns[1:]
    )
