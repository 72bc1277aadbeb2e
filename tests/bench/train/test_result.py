"""Sample images as PNG files, which need no library."""

import io
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.utils import make_grid

from switch_ema.bench.train.result import to_png


@pytest.mark.parametrize(
    ("shape", "times", "columns"),
    [
        ((1, 3, 90, 80), 1, 1),
        ((3, 1, 28, 28), 3, 3),
        ((13, 3, 64, 70), 1, 4),
        ((12, 3, 100, 20), 4, 12),
    ],
)
def test_the_grid_is_that_of_torchvision(shape, times, columns):
    pictures = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    found = Image.open(io.BytesIO(to_png({"samples": pictures})["samples"]))
    larger = pictures.repeat_interleave(times, 2).repeat_interleave(times, 3)
    grid = make_grid(larger, nrow=columns, padding=2, pad_value=0.5)
    expected = (grid * 255 + 0.5).clamp(0, 255).to(torch.uint8).permute(1, 2, 0)
    assert found.mode == "RGB"
    assert np.array_equal(np.asarray(found), expected.numpy())


def test_values_outside_of_the_range_are_clamped():
    pictures = torch.tensor([-1.0, 2.0]).reshape(2, 1, 1, 1)
    found = np.asarray(Image.open(io.BytesIO(to_png({"x": pictures})["x"])))
    assert found[10, 10].tolist() == [0] * 3 and found[10, 80].tolist() == [255] * 3


def test_samples_of_a_task_of_ones_own_need_no_torchvision():
    code = """
import sys
sys.modules |= dict.fromkeys(("PIL", "torchvision"))
import torch
from switch_ema.bench.train.result import to_png
assert to_png({"x": torch.zeros(2, 3, 8, 8)})["x"].startswith(b"\\x89PNG")
"""
    subprocess.run([sys.executable, "-c", code], check=True)
