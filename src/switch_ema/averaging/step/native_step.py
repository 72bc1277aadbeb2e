"""Updates and averages in one pass over memory with the C kernels."""

import operator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from switch_ema.averaging.kernels import native
from switch_ema.averaging.kernels.torch_ops import Columns
from switch_ema.averaging.step.blocks import Row, Shadows, StepAverage, Work


@dataclass(frozen=True)
class _Checked:
    """Checked rows of work, and the tensors that were checked.

    Gradients change at every step, but always have the strides of their parameters.
    """

    shadows: Shadows
    kept: Columns
    """All columns of the work but the gradients, and the steps."""
    rows: list[int]
    """Rows that the C kernels can process; torch does the others."""
    ids: set[int]
    averages: list[Tensor]
    sizes: list[int]
    dtype: torch.dtype

    def is_of(self, work: Work, average: StepAverage) -> bool:
        """Whether these are still the same tensors."""
        kept = _all_but_gradients(work)
        return (
            self.shadows is average.shadows
            and list(map(len, kept)) == list(map(len, self.kept))
            and all(
                all(map(operator.is_, now, then))
                for now, then in zip(kept, self.kept, strict=True)
            )
        )


class NativeStep:
    """Processes suitable rows in one pass, and caches its checks."""

    def __init__(self) -> None:
        self._checked: dict[int, _Checked] = {}

    def run(self, work: Work, average: StepAverage, place: int) -> Work | None:
        """Update and average what the C kernels can; return the remaining work.

        Args:
            work: the tensors that the optimizer updates.
            average: the average to compute with them.
            place: the index of the work in the optimizer, the key of cached checks.
        """
        # Above one half torch's lerp uses another formula, which the kernels lack.
        if work.formula is None or average.weight >= 0.5:
            return work
        checked = self._checked.get(place)
        if checked is None or not checked.is_of(work, average):
            checked = self._checked[place] = _check(work, average)
        if not checked.rows:
            return work
        columns, steps = work.columns, work.steps
        if len(checked.rows) < len(columns[0]):
            columns, steps = work.part(checked.rows)
        ending = [checked.averages, steps] if steps else [checked.averages]
        table = native.table_of([*columns, *ending], checked.sizes)
        increment_version(columns[0])  # now, while the tensors are still cached
        work.formula.native(table, checked.dtype, average.weight)
        average.done |= checked.ids
        return work.without(checked.ids)


def _all_but_gradients(work: Work) -> Columns:
    return [work.columns[0], *work.columns[2:], work.steps]


def _check(work: Work, average: StepAverage) -> _Checked:
    rows: list[int] = []
    averages: list[Tensor] = []
    dtype = torch.float32
    for i, parameter in enumerate(work.columns[0]):
        shadow = average.shadow_of(parameter)
        if shadow is None or (rows and parameter.dtype != dtype):
            continue
        has_count = not work.steps or _is_count(work.steps[i])
        if has_count and _have_equal_strides((*(c[i] for c in work.columns), shadow)):
            dtype = parameter.dtype
            rows.append(i)
            averages.append(shadow)
    chosen = [work.columns[0][i] for i in rows]
    return _Checked(
        average.shadows,
        [list(column) for column in _all_but_gradients(work)],
        rows,
        set(map(id, chosen)),
        averages,
        list(map(Tensor.numel, chosen)),
        dtype,
    )


def _have_equal_strides(row: Row) -> bool:
    """Whether all tensors of a row have the dtype, shape and strides of the first."""
    first = row[0]
    return (
        first.is_cpu
        and native.is_available(first.dtype)
        and all(
            tensor.layout == torch.strided
            and tensor.dtype == first.dtype
            and tensor.shape == first.shape
            and tensor.stride() == first.stride()
            for tensor in row
        )
    )


def _is_count(step: Tensor) -> bool:
    return step.dtype == torch.float32 and step.is_cpu
