"""Averages in bfloat16, rounded so that small updates are not lost."""

import functools

import torch
from torch import Tensor

from switch_ema.averaging.kernels.torch_ops import CHUNK, pieces


def lerp_dithered_(
    shadow: list[Tensor], live: list[Tensor], weight: float, step: int
) -> None:
    """Update bfloat16 shadows, with rounding that keeps them from stalling.

    Near the end of training an update is far below half a unit in the last place of
    bfloat16, and rounding to nearest would always discard it. Instead, the sum is
    computed in float32 and rounded up or down by a threshold that changes with
    ``step`` (see :func:`round_to_bfloat16_`).
    """
    thresholds: dict[torch.device, Tensor] = {}
    for average, value in pieces(shadow, live):
        if average.device not in thresholds:
            thresholds[average.device] = rounding_thresholds(average.device, step)
        exact = average.to(torch.float32, memory_format=torch.contiguous_format)
        exact.lerp_(value.to(average.device, torch.float32), weight)
        average.copy_(round_to_bfloat16_(exact, thresholds[average.device]))


def rounding_thresholds(device: torch.device, step: int) -> Tensor:
    """Return the rounding thresholds of a step, one per element of a piece.

    A fixed random phase per element plus a multiple of the golden ratio per step gives
    each element a low-discrepancy sequence of thresholds: the accumulated rounding
    error stays within a few units instead of growing like a random walk. The result
    depends on ``step`` alone, so resuming is exact.
    """
    return (rounding_phases(device) + rounding_offset(step)).bitwise_and_(0xFFFF)


def rounding_offset(step: int) -> int:
    """Return the shift of all thresholds at a step."""
    return int(step * 0.6180339887498949 * 65536) & 0xFFFF


def round_to_bfloat16_(exact: Tensor, thresholds: Tensor) -> Tensor:
    """Round float32 values, in place, to values that bfloat16 can represent."""
    bits = exact.view(torch.int32)
    thresholds = thresholds[: exact.numel()].view(exact.shape)
    # Adding to the bits of a NaN can wrap around to a finite number, so skip those.
    # Reading the sum would synchronize with a GPU, so there we always do it.
    if exact.device.type != "cpu" or not bool(exact.sum().isfinite()):
        thresholds = torch.where(exact.isfinite(), thresholds, 0)
    bits.add_(thresholds).bitwise_and_(-65536)
    return exact


@functools.lru_cache(maxsize=8)
def rounding_phases(device: torch.device) -> Tensor:
    """Return the part of the thresholds that does not depend on the step."""
    # On the CPU whatever the default device is: the values must not depend on it.
    generator = torch.Generator("cpu").manual_seed(0)
    values = torch.randint(
        65536, (CHUNK,), generator=generator, dtype=torch.int32, device="cpu"
    )
    return values.to(device)
