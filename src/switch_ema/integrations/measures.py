"""Quantities to log about an average: decay, switches, kept share and distance."""

from collections.abc import Mapping
from typing import Any

import torch

from switch_ema.averaging.averager import Averager
from switch_ema.averaging.methods.switch_ema import SwitchEMA

DECAY, DISTANCE = "averaging/decay", "averaging/distance"
SWITCHES, KEPT_SHARE = "averaging/switches", "averaging/kept_share"


def distance(averager: Averager) -> float:
    """Distance from the live weights to the average, relative to the live norm.

    Under FSDP2, all ranks must call it.
    """
    return relative_distance(averager.live_tensors(), averager.averaged_tensors())


@torch.no_grad()
def relative_distance(
    live: Mapping[str, torch.Tensor], averages: Mapping[str, torch.Tensor]
) -> float:
    """Same as :func:`distance`, for tensors by name."""
    between = norm = torch.zeros((), dtype=torch.float64)
    for name, tensor in live.items():
        if tensor.is_floating_point():
            average = averages[name].to(tensor.device, torch.float32)
            between = between + _square(tensor.float() - average)
            norm = norm + _square(tensor.float())
    return float((between / norm).sqrt()) if norm > 0 else 0.0


def describe_average(averager: Averager, moved: float) -> dict[str, float]:
    """Values to log once per epoch, by name.

    Args:
        averager: the averager, after the end of the epoch.
        moved: the :func:`distance` before the epoch end; a switch resets it to zero.
    """
    values = {DECAY: float(averager.current_decay), DISTANCE: moved}
    if averager.active:
        values[SWITCHES] = float(averager.switches)
    if isinstance(averager, SwitchEMA) and averager.kept_share is not None:
        values[KEPT_SHARE] = averager.kept_share
    return values


def _square(tensor: torch.Tensor) -> torch.Tensor:
    """Sum of squares over all shards, on the CPU."""
    total: Any = tensor.square().sum()
    if hasattr(total, "full_tensor"):
        total = total.full_tensor()
    result: torch.Tensor = total.double().cpu()
    return result
