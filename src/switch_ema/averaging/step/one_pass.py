"""Update and average in one pass over memory, compiled by torch.compile.

For devices without C kernels. The compiler generates one loop that reads the gradient
and reads and writes the weight, its moments and its shadow: with AdamW, 36 bytes per
parameter instead of 28 for the step and 12 for a separate average. Values that change
between steps (learning rate, decay, step count) are passed as tensors to avoid
recompilation.
"""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from switch_ema.averaging.step.blocks import Formula, Row, StepAverage, Work

_MOST_VERSIONS = 3
"""Most parameter sets to compile for; with more (random freezing, say) we give up."""


class OnePass:
    """Compiled loops that update and average parameters."""

    def __init__(self, compiles: bool) -> None:
        self.was_asked_for = self._compiles = compiles
        self._versions: dict[tuple[Any, ...], Callable[..., None]] = {}

    @property
    def compiles(self) -> bool:
        """Whether compilation was requested and has not failed."""
        return self._compiles

    def run(self, work: Work, average: StepAverage) -> Work | None:
        """Process the parameters that allow one pass; return the remaining work."""
        if not self._compiles or work.formula is None:
            return work
        rows = work.averaged_rows(average)
        if not rows or not self._call(work.formula, rows, average.weight):
            return work
        done = {id(row[0]) for row in rows}
        average.done |= done
        return work.without(done)

    def _call(self, formula: Formula, rows: list[Row], weight: float) -> bool:
        columns = [list(column) for column in zip(*rows, strict=True)]
        key = formula.row, len(columns), tuple(map(torch.Tensor.size, columns[0]))
        compiled = self._versions.get(key)
        if compiled is None and len(self._versions) >= _MOST_VERSIONS:
            self._compiles = False
            return False
        numbers = [*formula.numbers, weight]
        scalars = [torch.tensor(number, dtype=torch.float64) for number in numbers]
        try:
            if compiled is None:
                compiled = self._versions[key] = _compile(formula.row)
            compiled(columns, scalars)
        except Exception as error:  # a broken or missing compiler may raise anything
            warnings.warn(
                "torch.compile failed, so weights are averaged block by block: "
                f"{_first_line(error)}",
                stacklevel=2,
            )
            self._compiles = False
            return False
        return True


def _compile(row: Callable[..., None]) -> Callable[..., None]:
    def all_rows(columns: list[list[Tensor]], numbers: list[Tensor]) -> None:
        for tensors in zip(*columns, strict=True):
            row(*tensors, numbers)

    # A C++ wrapper avoids Python overhead between two loops.
    options: Any = {"cpp_wrapper": True}
    return torch.compile(all_rows, fullgraph=True, dynamic=False, options=options)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].rstrip(".") + "."
