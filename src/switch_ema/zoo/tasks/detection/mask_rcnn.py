"""Mask R-CNN and Cascade Mask R-CNN (Table 6)."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from switch_ema.bench.task import Recipe
from switch_ema.zoo.models.detection.cascade import (
    paper_cascade_mask_rcnn,
    small_cascade_mask_rcnn,
)
from switch_ema.zoo.models.detection.mask_rcnn import (
    SMALL,
    paper_mask_rcnn,
    small_mask_rcnn,
)
from switch_ema.zoo.tasks.detection import measure
from switch_ema.zoo.tasks.detection.detection import Detection
from switch_ema.zoo.tasks.detection.settings import SmallTraining

_CROWDED = replace(SMALL, proposals=(300, 200), sampled_boxes=64, detections=100)
"""For images with more than three objects."""


class MaskRCNN(Detection):
    """Detection and instance segmentation with Mask R-CNN: shapes, nuclei or COCO.

    ``Detection`` describes the options.
    """

    metrics = (measure.BOX_AP, measure.MASK_AP, measure.BOX_AP50)
    masks = True
    drawn_from = 0.5
    usual_schedule = "2x"
    small = SmallTraining(epochs={"1x": 5, "2x": 10}, size=100)

    @classmethod
    def recipe_for(cls, options: Mapping[str, Any]) -> Recipe:
        """Return the schedule's recipe."""
        return replace(super().recipe_for(options), revision=2)  # box losses

    def detector(self) -> nn.Module:
        """Make the network."""
        if self.is_small:
            return small_mask_rcnn(self.data.classes, **self.small_options())
        return paper_mask_rcnn(self.data.classes, **self.paper_options())

    def small_options(self) -> dict[str, Any]:
        """Return the arguments that all small networks share."""
        return {
            "backbone": self.backbone,
            "side": self.side,
            "sizes": SMALL if self.dataset == "shapes" else _CROWDED,
        }


class CascadeMaskRCNN(MaskRCNN):
    """Detection and instance segmentation with Cascade Mask R-CNN: three stages.

    ``Detection`` describes the options.
    """

    usual_schedule = "3x"
    small = SmallTraining(epochs={"1x": 6, "3x": 2, "9x": 6}, size=80)

    def detector(self) -> nn.Module:
        """Make the network."""
        if self.is_small:
            return small_cascade_mask_rcnn(self.data.classes, **self.small_options())
        return paper_cascade_mask_rcnn(self.data.classes, **self.paper_options())
