"""What a trainer's logger can show of an average: decay, switches, share, distance."""

from typing import Any

import torch

from switch_ema.averaging.averager import Averager
from switch_ema.averaging.methods.switch_ema import SwitchEMA


def distance(averager: Averager) -> float:
    """Return how far the live weights are from the average, relative to their norm.

    Under FSDP2 all ranks must call it.
    """
    averages = averager.averaged_tensors()
    between = norm = torch.zeros((), dtype=torch.float64)
    for name, live in averager.live_tensors().items():
        if live.is_floating_point():
            average = averages[name].to(live.device, torch.float32)
            between = between + _square(live.float() - average)
            norm = norm + _square(live.float())
    return float((between / norm).sqrt()) if norm > 0 else 0.0


def describe_average(averager: Averager, moved: float) -> dict[str, float]:
    """Return what is logged once an epoch, by name.

    Args:
        averager: after the end of the epoch.
        moved: the :func:`distance` before it, since a switch makes it zero.
    """
    values = {
        "averaging/decay": float(averager.current_decay),
        "averaging/distance": moved,
    }
    if averager.active:
        values["averaging/switches"] = float(averager.switches)
    if isinstance(averager, SwitchEMA) and averager.kept_share is not None:
        values["averaging/kept_share"] = averager.kept_share
    return values


def _square(tensor: torch.Tensor) -> torch.Tensor:
    """Return the sum of squares, of all shards, on the CPU."""
    total: Any = tensor.square().sum()
    if hasattr(total, "full_tensor"):
        total = total.full_tensor()
    result: torch.Tensor = total.double().cpu()
    return result
