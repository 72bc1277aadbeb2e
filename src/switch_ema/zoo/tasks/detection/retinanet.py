"""RetinaNet (Table 7)."""

from torch import nn

from switch_ema.zoo.models.detection.retinanet import (
    paper_retinanet,
    small_retinanet,
)
from switch_ema.zoo.tasks.detection.detection import Detection
from switch_ema.zoo.tasks.detection.settings import SmallTraining


class RetinaNet(Detection):
    """Object detection with RetinaNet: shapes, blood cells or any COCO folder.

    ``Detection`` describes the options.
    """

    usual_schedule = "2x"
    small = SmallTraining(epochs={"1x": 6, "2x": 12}, size=120)
    slow = SmallTraining(epochs={"1x": 10, "2x": 20}, size=240)
    """For transformers, which need more training."""

    @classmethod
    def small_training(cls, backbone: str) -> SmallTraining:
        """Return the small version's training settings."""
        return cls.slow if backbone == "swin-t" else cls.small

    def detector(self) -> nn.Module:
        """Make the network."""
        if self.is_small:
            return small_retinanet(
                self.data.classes, backbone=self.backbone, side=self.side
            )
        return paper_retinanet(self.data.classes, **self.paper_options())
