"""Multiply-adds of a detector's forward pass, counted as MMDetection does.

Backbone, pyramid and dense heads see one image; the heads for regions see 1,000
proposals, and those for masks 100 of them. Nothing is computed: tensors have shapes
only.
"""

from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

_PROPOSALS, _MASKS = 1000, 100


def multiply_adds(detector: nn.Module, height: int, width: int) -> int:
    """Count the multiplications with an addition; each is two operations.

    Args:
        detector: One of this package's, on the meta device.
        height: Of the image, in pixels, a multiple of 32.
        width: Likewise.
    """
    model: Any = detector.eval()
    image = torch.empty(1, 3, height, width, device="meta")
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        features = model.backbone(image)
        if hasattr(model, "neck"):  # YOLOX
            model.head(model.neck(features))
        elif hasattr(model, "rpn"):
            maps = list(features.values())
            model.rpn.head(maps)
            _regions(model.roi_heads, maps[0].shape[1])
        else:
            model.head(list(features.values()))
    return int(counter.get_total_flops()) // 2


def _regions(heads: Any, width: int) -> None:
    """Run the heads of one stage, or of each stage of a cascade."""
    for stage in getattr(heads, "stages", [heads]):
        size = stage.box_roi_pool.output_size
        regions = torch.empty(_PROPOSALS, width, *size, device="meta")
        stage.box_predictor(stage.box_head(regions))
        size = stage.mask_roi_pool.output_size
        masked = torch.empty(_MASKS, width, *size, device="meta")
        stage.mask_predictor(stage.mask_head(masked))
