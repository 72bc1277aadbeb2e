"""Multiply-adds against published counts."""

import pytest
import torch

from switch_ema.zoo.models.detection.cascade import paper_cascade_mask_rcnn
from switch_ema.zoo.models.detection.mask_rcnn import paper_mask_rcnn
from switch_ema.zoo.models.detection.operations import multiply_adds
from switch_ema.zoo.models.detection.retinanet import paper_retinanet
from switch_ema.zoo.models.detection.yolox import yolox_s

pytestmark = pytest.mark.zoo


@pytest.mark.parametrize(
    ("make", "size", "billions"),
    [
        # With ResNet-50 at 800 x 1280, as in the tables of PVT and Swin.
        (paper_retinanet, (800, 1280), 239),
        (paper_mask_rcnn, (800, 1280), 260),
        # Two more stages of fully connected heads for 1,000 boxes, and convolutions and
        # an upsampling for 100 masks; Swin's 739 has convolutions in its box heads.
        (
            paper_cascade_mask_rcnn,
            (800, 1280),
            260
            + 2 * 1000 * (256 * 49 * 1024 + 1024**2) / 1e9
            + 2 * 100 * 196 * (4 * 9 + 4) * 256**2 / 1e9,
        ),
        (yolox_s, (640, 640), 26.8 / 2),  # YOLOX counts two operations for each
    ],
)
def test_counts_are_the_published_ones(make, size, billions):
    with torch.device("meta"):
        detector = make(80)
    assert multiply_adds(detector, *size) / 1e9 == pytest.approx(billions, rel=0.01)
