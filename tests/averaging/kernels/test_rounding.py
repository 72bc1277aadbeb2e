"""Rounding to bfloat16: unbiased over steps, and nothing infinite becomes a number."""

import pytest
import torch

from switch_ema.averaging.kernels import rounding

pytestmark = pytest.mark.usefixtures("arithmetic")


def test_dithered_lerp_is_within_one_unit_and_unbiased_over_steps():
    start = torch.full((1000,), 1.0, dtype=torch.bfloat16)
    live = torch.full((1000,), 1.1)
    total = torch.zeros(1000)
    steps = 512
    for step in range(steps):
        shadow = start.clone()
        rounding.lerp_dithered_([shadow], [live], 0.01, step)
        assert set(shadow.unique().tolist()) <= {1.0, 1.0078125}  # neighbours of 1.001
        total += shadow.float()
    # Each element on its own averages to 1.001, which bfloat16 cannot hold.
    torch.testing.assert_close(
        total / steps, torch.full((1000,), 1.001), rtol=0, atol=5e-5
    )


@pytest.mark.parametrize("bits", [0x7FFFFFFF, 0x7FC00000, 0x7F800000, -0x800000])
def test_dithering_keeps_what_is_not_finite(bits):
    """The largest NaN (CUDA's), the usual one, and both infinities."""
    broken = torch.tensor([bits], dtype=torch.int32).view(torch.float32)
    for step in range(50):
        exact = torch.cat([broken, torch.ones(1)])
        thresholds = rounding.rounding_thresholds(exact.device, step)
        rounded = rounding.round_to_bfloat16_(exact, thresholds).bfloat16()
        assert not rounded[0].isfinite()
        assert rounded[1] == 1
