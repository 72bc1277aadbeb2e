"""Measure a model at many points of weight space without changing it.

The reference is a loop that writes the weights of each point into the model. Where
overhead dominates a forward pass, ``torch.func.vmap`` measures many points in one pass;
models that it cannot run, or runs with a different result, use the loop.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from switch_ema._checks import check_positive
from switch_ema.analysis.landscape.directions import Floats, Weights
from switch_ema.analysis.landscape.points import Points
from switch_ema.analysis.landscape.vectorised import (
    WORTHWHILE,
    measure_vectorised,
    points_at_once,
)
from switch_ema.analysis.probes import Probe, merge, run_probes
from switch_ema.averaging.model.names import unwrap
from switch_ema.averaging.model.slots import Slot
from switch_ema.averaging.view.recalibration import recalibrate


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Measurements at each point."""

    values: dict[str, Floats]
    """One number per point; if one value is not finite, all of that point are NaN."""
    vectorised: frozenset[str]
    """Names that were measured at many points at once."""


def evaluate_points(
    model: nn.Module,
    centre: Weights,
    directions: Sequence[Weights],
    coefficients: Any,
    probes: Sequence[Probe],
    *,
    recompute_norm: Iterable[Any] | None = None,
    vectorise: bool | None = None,
    memory: float | None = None,
) -> Evaluation:
    """Measure the model at ``centre + sum_k c_k * direction_k`` for rows c.

    Weights, buffers, modes and random state are restored, also after an exception.
    Every point uses the same random numbers.

    Args:
        model: provides the architecture. torch.compile and DDP are unwrapped.
        centre: a state dict with plain names, such as ``averaged_state_dict()``;
            missing buffers are taken from the model.
        directions: steps by name; missing tensors stay at the centre.
        coefficients: one row per point, one column per direction.
        probes: what to measure, under distinct names.
        recompute_norm: batches from which to recompute the statistics of normalisation
            layers at every point. Only the loop supports this.
        vectorise: whether to measure many points at once; by default if it is expected
            to be faster and a checked point gives the same result.
        memory: bytes for points measured at once; by default 8 MiB on a CPU, where
            more is slower, and 1 GiB elsewhere.

    Raises:
        ValueError: names, shapes or options do not fit.
        RuntimeError: ``vectorise`` is True, and vmap cannot run the model.
    """
    if vectorise and recompute_norm is not None:
        raise ValueError("vectorise=True does not support recompute_norm.")
    if memory is not None:
        check_positive("memory", memory)
    if not probes:
        raise ValueError("probes must have at least one probe, got none.")
    model = unwrap(model)
    points = Points(model, centre, directions, coefficients)
    norm_batches = None if recompute_norm is None else list(recompute_norm)
    found: dict[str, Floats] = {}
    slow: list[Probe] = []
    with _untouched(model, points.slots):
        for probe in probes:
            part = None
            if vectorise is not False and norm_batches is None:
                part = _vectorised(model, points, probe, memory, force=bool(vectorise))
            if part is None:
                slow.append(probe)
            else:
                found = merge(found, part)
        vectorised = frozenset(found)
        if slow:
            rows = range(len(points))
            found = merge(found, _looped(model, points, slow, rows, norm_batches))
    gap = ~np.isfinite(list(found.values())).all(0)
    values = {name: np.where(gap, np.nan, column) for name, column in found.items()}
    return Evaluation(values, vectorised)


def _looped(
    model: nn.Module,
    points: Points,
    probes: Sequence[Probe],
    rows: Iterable[int],
    norm_batches: Sequence[Any] | None = None,
) -> dict[str, Floats]:
    """Measure points one by one; correct for every model."""
    found = []
    for row in rows:
        with _same_random_numbers(points.slots):
            points.load(row)
            if norm_batches is not None:
                own = {id(buffer) for buffer in model.buffers()}
                recalibrate(model, norm_batches, None, own)
            found.append(
                run_probes(probes, lambda probe, b: probe.measure(model, b), ())
            )
    return {name: np.array([point[name] for point in found]) for name in found[0]}


def _vectorised(
    model: nn.Module,
    points: Points,
    probe: Probe,
    memory: float | None,
    *,
    force: bool,
) -> dict[str, Floats] | None:
    """Measure many points at once; None if the loop is faster or required."""
    with _same_random_numbers(points.slots):
        at_once = points_at_once(model, points, probe, memory)
    if not force and min(at_once, len(points)) < WORTHWHILE:
        return None
    try:
        with _same_random_numbers(points.slots):
            found = measure_vectorised(model, points, probe, max(at_once, 1))
    except Exception as error:
        # The loop will show whether vmap or the measurement is to blame.
        if force:
            raise RuntimeError(
                f"vectorise is True, but vmap failed: {error}"
            ) from error
        return None
    # A module may hold references to its weights, and so ignore those of vmap.
    row = points.typical()
    slow = _looped(model, points, [probe], [row])
    same = all(
        np.allclose(found[name][row], slow[name], rtol=1e-3, atol=1e-5, equal_nan=True)
        for name in slow
    )
    if not same and force:
        raise RuntimeError("vectorise is True, but its result differs from the loop's.")
    return found if same else None


@contextmanager
def _untouched(model: nn.Module, slots: Sequence[Slot]) -> Iterator[None]:
    """Enter evaluation mode; restore everything on exit."""
    tensors = [slot.tensor for slot in slots]
    kept = [tensor.detach().clone() for tensor in tensors]
    modes = {module: module.training for module in model.modules()}
    # The fused transformer layer does not support vmap.
    fused = torch.backends.mha.get_fastpath_enabled()
    try:
        torch.backends.mha.set_fastpath_enabled(False)
        model.eval()
        with torch.no_grad():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)
        for module, mode in modes.items():
            module.training = mode
        with torch.no_grad():
            for slot, tensor, old in zip(slots, tensors, kept, strict=True):
                # A module may have replaced the tensor.
                slot.owner[slot.key] = tensor
                tensor.copy_(old)


@contextmanager
def _same_random_numbers(slots: Sequence[Slot]) -> Iterator[None]:
    """Restore the random state, so every point draws the same numbers."""
    devices = {slot.tensor.device for slot in slots}
    indices = [device.index or 0 for device in devices if device.type == "cuda"]
    with torch.random.fork_rng(indices):
        yield
