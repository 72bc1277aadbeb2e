"""Update and average in one pass over memory, by the kernels in C."""

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from switch_ema.averaging import native
from switch_ema.averaging.blocks import StepAverage, Work


def run(work: Work, average: StepAverage) -> Work:
    """Do what can be done in one pass; return the work that is left."""
    # Above one half an average has another form, which the kernels do not know.
    if work.formula is None or average.weight >= 0.5:
        return work
    fitting = [row for row in work.averaged_rows(average) if _fits(row, work)]
    chosen = [row for row in fitting if row[0].dtype == fitting[0][0].dtype]
    if not chosen:
        return work
    columns = [list(column) for column in zip(*chosen, strict=True)]
    parameters = columns[0]
    table = native.table_of(columns, map(Tensor.numel, parameters))
    work.formula.native(table, parameters[0].dtype, average.weight)
    increment_version(parameters)
    return work.without(parameters, average)


def _fits(row: tuple[Tensor, ...], work: Work) -> bool:
    """Whether all tensors of a row lie in memory as the parameter does."""
    tensors, steps = (row[:-1], row[-1:]) if work.steps else (row, ())
    first = row[0]
    dtype, shape, stride = first.dtype, first.shape, first.stride()
    return (
        first.is_cpu
        and native.is_available(dtype)
        and all(
            tensor.layout == torch.strided
            and tensor.dtype == dtype
            and tensor.shape == shape
            and tensor.stride() == stride
            for tensor in tensors
        )
        and all(step.dtype == torch.float32 and step.is_cpu for step in steps)
    )
