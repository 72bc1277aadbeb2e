"""Measure a model at many points of weight space and leave it as it was.

The reference is the loop, which writes the weights of one point after the other into
the model. Where a pass through the model is so small that its overhead dominates,
``torch.func.vmap`` measures many points in one pass; what it cannot run, or runs with
another result, is left to the loop.
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
    """What was measured at each point."""

    values: dict[str, Floats]
    """One number per point; NaN in all where one of them was not finite."""
    vectorised: frozenset[str]
    """The names of what was measured at many points at once."""


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

    Weights, buffers, modes and random numbers are afterwards what they were, also
    after an exception. Each point sees the same random numbers, if there are any.

    Args:
        model: lends its architecture. Of a model inside torch.compile or DDP, the
            plain one is measured.
        centre: a state dict with plain names, such as ``averaged_state_dict()``;
            buffers that it lacks are the model's own.
        directions: steps by name; tensors that they lack stay at the centre.
        coefficients: one row per point, one column per direction.
        probes: what to measure, under names that differ.
        recompute_norm: batches from which the statistics of normalisation layers are
            recomputed at every point. Only the loop can do this.
        vectorise: measure many points at once, or not; by default where it promises
            to be faster, and if a point that is checked comes out the same.
        memory: bytes for points measured at once; by default 8 MiB on a CPU, where
            more is slower, and 1 GiB elsewhere.

    Raises:
        ValueError: names, shapes or options do not fit.
        RuntimeError: ``vectorise`` is True, and vmap cannot run the model.
    """
    if vectorise and recompute_norm is not None:
        raise ValueError("vectorise must not be True where recompute_norm is given.")
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
    """Measure point after point; correct for every model."""
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
    """Measure many points at once; None where the loop is faster, or is needed."""
    with _same_random_numbers(points.slots):
        at_once = points_at_once(model, points, probe, memory)
    if not force and min(at_once, len(points)) < WORTHWHILE:
        return None
    try:
        with _same_random_numbers(points.slots):
            found = measure_vectorised(model, points, probe, max(at_once, 1))
    except Exception as error:
        # Whether vmap or the measurement is to blame, the loop will show.
        if force:
            raise RuntimeError(
                f"vectorise is True, but vmap failed: {error}"
            ) from error
        return None
    # A module may have kept references to its weights, and so not see those of vmap.
    row = points.typical()
    slow = _looped(model, points, [probe], [row])
    same = all(
        np.allclose(found[name][row], slow[name], rtol=1e-3, atol=1e-5, equal_nan=True)
        for name in slow
    )
    if not same and force:
        raise RuntimeError("vectorise is True, but the result is not that of the loop.")
    return found if same else None


@contextmanager
def _untouched(model: nn.Module, slots: Sequence[Slot]) -> Iterator[None]:
    """Measure inside: in evaluation mode, and everything is put back at the end."""
    tensors = [slot.tensor for slot in slots]
    kept = [tensor.detach().clone() for tensor in tensors]
    modes = {module: module.training for module in model.modules()}
    # The fused layer of transformers is not made for vmap.
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
                # A module may have put another tensor into its place.
                slot.owner[slot.key] = tensor
                tensor.copy_(old)


@contextmanager
def _same_random_numbers(slots: Sequence[Slot]) -> Iterator[None]:
    """Put the state of the random numbers back, so that the next one draws the same."""
    devices = {slot.tensor.device for slot in slots}
    indices = [device.index or 0 for device in devices if device.type == "cuda"]
    with torch.random.fork_rng(indices):
        yield
