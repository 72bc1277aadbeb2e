"""Measure many points of weight space in one pass."""

from contextlib import nullcontext
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from switch_ema.analysis.landscape.directions import Floats
from switch_ema.analysis.landscape.points import Points
from switch_ema.analysis.probes import Measure, Probe, run_probes

CPU_MEMORY, OTHER_MEMORY = 8 * 2**20, 2**30
"""Bytes for points measured at once; a CPU is slower beyond its cache."""
WORTHWHILE = 16
"""With fewer points at once vmap does not pay off."""


def points_at_once(
    model: nn.Module, points: Points, probe: Probe, memory: float | None
) -> int:
    """Return how many points fit into the memory, possibly 0.

    Runs the model once on the first batch, with its current weights.
    """
    if memory is None:
        memory = CPU_MEMORY if points.device.type == "cpu" else OTHER_MEMORY
    with _LargestResult() as largest:  # type: ignore[no-untyped-call]
        for batch in probe.batches[:1]:
            probe.measure(model, batch)
    # Without gradients an operation needs little more than operands and result.
    return int(memory // max(points.moving_bytes() + 3 * largest.bytes, 1))


def measure_vectorised(
    model: nn.Module, points: Points, probe: Probe, at_once: int
) -> dict[str, Floats]:
    """Measure all points, ``at_once`` of them in each pass.

    Raises:
        Exception: whatever vmap raises for models that it cannot run, such as those
            with data-dependent control flow, buffer writes or random numbers.
    """
    names = {
        id(tensor): name
        for name, tensor in chain(model.named_parameters(), model.named_buffers())
    }
    real = {slot.name: f"model.{names[id(slot.tensor)]}" for slot in points.slots}
    tables = []
    for first in range(0, len(points), at_once):
        moving = points.moving(slice(first, first + at_once))
        stacked = {real[name]: tensor for name, tensor in moving.items()}
        fixed = {real[name]: tensor for name, tensor in points.fixed().items()}
        run = partial(_run, model, stacked, fixed)
        count = min(at_once, len(points) - first)
        tables.append(run_probes([probe], run, (count,)))
    return {
        name: np.concatenate([table[name] for table in tables]) for name in tables[0]
    }


def _run(
    model: nn.Module,
    stacked: dict[str, Tensor],
    fixed: dict[str, Tensor],
    probe: Probe,
    batch: Any,
) -> dict[str, Tensor]:
    """Measure one batch at several points."""
    measured = _Measured(model, probe.measure)

    def one(weights: dict[str, Tensor]) -> Any:
        return functional_call(measured, (weights, fixed), (batch,))

    on_cpu = any(tensor.device.type == "cpu" for tensor in stacked.values())
    # Fused attention on CPUs does not support vmap.
    with sdpa_kernel(SDPBackend.MATH) if on_cpu else nullcontext():
        return dict(vmap(one)(stacked))


class _Measured(nn.Module):
    """A measurement as a module, as functional_call requires."""

    def __init__(self, model: nn.Module, measure: Measure) -> None:
        super().__init__()
        self.model = model
        self._measure = measure

    def forward(self, batch: Any) -> dict[str, Any]:
        return dict(self._measure(self.model, batch))


class _LargestResult(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the size of the largest tensor that an operation creates."""

    bytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if not func.is_view:
            parts = result if isinstance(result, (list, tuple)) else [result]
            sizes = [part.nbytes for part in parts if isinstance(part, Tensor)]
            self.bytes = max(self.bytes, *sizes, 0)
        return result
