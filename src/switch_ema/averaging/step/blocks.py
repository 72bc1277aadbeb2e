"""Processes lists of tensors in blocks that fit into the cache."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain

import torch
from torch import Tensor

from switch_ema.averaging.kernels import torch_ops
from switch_ema.averaging.kernels.native import Table
from switch_ema.averaging.kernels.torch_ops import Columns

BLOCK = 1 << 20
"""Elements per block: parameter, gradient, two moments and shadow are 20 MB.

Smaller blocks would fit into faster caches, but the threads sleep between two calls,
and waking them costs more than that saves.
"""

Row = tuple[Tensor, ...]

Shadows = dict[int, tuple[Tensor, Tensor]]
"""Parameter and shadow by the parameter's id; tensors are slow as keys."""


@dataclass
class StepAverage:
    """The average that an optimizer should compute within its next step."""

    weight: float
    """The weight of the live tensors: ``shadow += weight * (live - shadow)``."""
    shadows: Shadows
    """Shadows with the shape, strides and device of their parameters; the same object
    from step to step as long as nothing changes."""
    done: set[int] = field(default_factory=set)
    """Ids of the parameters averaged so far."""
    is_finished: bool = False

    def shadow_of(self, parameter: Tensor) -> Tensor | None:
        """Return the shadow if it still has to be averaged."""
        found = self.shadows.get(id(parameter))
        return None if found is None or id(parameter) in self.done else found[1]

    def finish(self) -> None:
        """Average the parameters that the step has not updated."""
        if len(self.done) < len(self.shadows):
            left = [pair for i, pair in self.shadows.items() if i not in self.done]
            lives, shadows = map(list, zip(*left, strict=True))
            torch_ops.lerp_(shadows, lives, self.weight)
        self.is_finished = True


@dataclass(frozen=True)
class Formula:
    """The arithmetic of a kernel on one row, for one-pass implementations."""

    numbers: list[float]
    """The numbers that it depends on, such as the learning rate."""
    row: Callable[..., None]
    """In torch, for a compiler: takes the tensors of a row, then the numbers."""
    native: Callable[[Table, torch.dtype, float], None]
    """In C: takes a table of all rows, their dtype and the live tensors' weight."""


@dataclass(frozen=True)
class Work:
    """The tensors that an optimizer updates with one kind of kernel call."""

    columns: Columns
    """The parameters first."""
    kernel: Callable[[Columns, list[Tensor]], None]
    """Updates the columns, or the same part of each, given their steps."""
    steps: list[Tensor] = field(default_factory=list)
    """Step counters of the rows, if the kernel needs them; incremented beforehand."""
    formula: Formula | None = None
    """None if there is no formula for what the kernel does."""

    def averaged_rows(self, average: StepAverage) -> list[Row]:
        """Return the rows to be averaged, with their shadow and step."""
        shadows = [average.shadow_of(parameter) for parameter in self.columns[0]]
        columns = [*self.columns, shadows, *([self.steps] if self.steps else [])]
        return [
            row
            for row, shadow in zip(zip(*columns, strict=True), shadows, strict=True)
            if shadow is not None
        ]

    def without(self, done: set[int]) -> "Work | None":
        """Return the remaining work, None if all parameters are done."""
        left = [i for i, tensor in enumerate(self.columns[0]) if id(tensor) not in done]
        if not left:
            return None
        columns, steps = self.part(left)
        return replace(self, columns=columns, steps=steps, formula=None)

    def part(self, rows: list[int]) -> tuple[Columns, list[Tensor]]:
        """Return the columns and the steps of some rows."""
        columns = [[column[i] for i in rows] for column in self.columns]
        return columns, [self.steps[i] for i in rows] if self.steps else []


def in_order(columns: Columns) -> Columns:
    """Return weights, gradients and moments, all with the strides of the weights.

    torch's fused kernels assume equal strides without a check. Others are copied:
    gradients that autograd did not make, and moments from before the weights got their
    strides, by ``.to(memory_format=...)`` or in the run that saved them.
    """
    if all(map(Tensor.is_contiguous, chain.from_iterable(columns))):
        return columns
    weights, *others = columns
    strides = list(map(Tensor.stride, weights))
    return [weights, *(_with(strides, weights, column) for column in others)]


def _with(
    strides: list[tuple[int, ...]], weights: list[Tensor], tensors: list[Tensor]
) -> list[Tensor]:
    if list(map(Tensor.stride, tensors)) == strides:
        return tensors
    return [
        tensor
        if (tensor.is_contiguous() and weight.is_contiguous())
        or tensor.stride() == weight.stride()
        else torch.empty_like(weight, dtype=tensor.dtype).copy_(tensor)
        for weight, tensor in zip(weights, tensors, strict=True)
    ]


def step_only(work: Work) -> None:
    """Update without an average."""
    if work.columns[0]:
        if work.steps:
            torch_ops.count_(work.steps)
        _call_kernel(work, work.columns, work.steps)


def _call_kernel(work: Work, columns: Columns, steps: list[Tensor]) -> None:
    """Call the kernel, with copies if weights have gaps in their memory."""
    weights, *others = columns
    if all(w.is_contiguous() or torch_ops.is_dense(w) for w in weights):
        work.kernel(columns, steps)
        return
    # Moments were made like the weights, so they already have the strides of copies.
    copies = [torch.empty_like(weight).copy_(weight) for weight in weights]
    work.kernel(in_order([copies, *others]), steps)
    torch_ops.copy_(weights, copies)


def step_and_average(work: Work, average: StepAverage) -> None:
    """Update block by block, and average each block while it is in the cache."""
    shadows = [average.shadow_of(parameter) for parameter in work.columns[0]]
    average.done.update(
        id(parameter)
        for parameter, shadow in zip(work.columns[0], shadows, strict=True)
        if shadow is not None
    )
    if work.steps:
        torch_ops.count_(work.steps)
    for columns, steps, targets in _blocks(work, shadows):
        _call_kernel(work, columns, steps)
        pairs = [
            (target, live)
            for target, live in zip(targets, columns[0], strict=True)
            if target is not None
        ]
        if pairs:
            averages, lives = map(list, zip(*pairs, strict=True))
            torch_ops.lerp_dense_(averages, lives, average.weight)


def _blocks(
    work: Work, shadows: list[Tensor | None]
) -> Iterator[tuple[Columns, list[Tensor], list[Tensor | None]]]:
    """Cut the rows into blocks: several small ones, or a part of a large one."""
    rows: list[int] = []
    size = 0
    for i, parameter in enumerate(work.columns[0]):
        if parameter.numel() > BLOCK and _have_equal_strides(work.columns, i):
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
    return *work.part(rows), [shadows[i] for i in rows]


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
    return torch.split(torch_ops.in_memory_order(tensor.detach()), BLOCK)


def _have_equal_strides(columns: Columns, row: int) -> bool:
    """Whether all tensors of a row have the strides of the first."""
    first = columns[0][row]
    return torch_ops.is_dense(first) and all(
        column[row].stride() == first.stride() for column in columns[1:]
    )
