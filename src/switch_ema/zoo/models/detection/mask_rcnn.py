"""Mask R-CNN: proposals, then a box, a class and a mask for each (He et al., 2017)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from switch_ema.zoo.data.sources import need
from switch_ema.zoo.models.detection.backbones import paper_backbone, small_backbone


@dataclass(frozen=True, kw_only=True)
class RoISizes:
    """Sizes of the heads, and numbers of boxes."""

    levels: tuple[str, ...]
    """FPN levels used for RoI pooling."""
    anchors: tuple[float, ...]
    """Anchor side at each level, including the proposals' coarsest level."""
    width: int
    """Width of the two hidden layers of the box head."""
    mask_layers: tuple[int, ...]
    """Channels of the mask head's convolutions."""
    proposals: tuple[int, int]
    """Proposals kept in training and in tests."""
    pooled: tuple[int, int] = (7, 14)
    """Side of the RoI features of a box and of a mask."""
    sampling: int = 2
    """Sampling points of RoI align per bin, along each side."""
    sampled_anchors: int
    sampled_boxes: int
    """Boxes sampled per image for the losses."""
    detections: int = 100
    """Maximum detections per image."""


SMALL = RoISizes(
    levels=("0", "1", "2"),
    anchors=(8.0, 16.0, 32.0),
    width=128,
    mask_layers=(32, 32),
    proposals=(100, 50),
    pooled=(5, 10),
    sampling=1,
    sampled_anchors=64,
    sampled_boxes=32,
    detections=20,
)
PAPER = RoISizes(
    levels=("0", "1", "2", "3"),
    anchors=(32.0, 64.0, 128.0, 256.0, 512.0),
    width=1024,
    mask_layers=(256, 256, 256, 256),
    proposals=(2000, 1000),
    sampled_anchors=256,
    sampled_boxes=512,
)


def small_mask_rcnn(
    classes: int,
    *,
    backbone: str = "resnet50",
    side: int = 64,
    sizes: RoISizes = SMALL,
) -> nn.Module:
    """Make a Mask R-CNN for small images; ``classes`` are without the background."""
    body = small_backbone(backbone)
    return _with_l1(make_mask_rcnn(body, classes, sizes, (side,), side))


def paper_mask_rcnn(
    classes: int,
    *,
    backbone: str = "resnet50",
    pretrained: bool = False,
    shorter_sides: Sequence[int] = (800,),
    longest_side: int = 1333,
) -> nn.Module:
    """Make the paper's Mask R-CNN; for the arguments see ``paper_retinanet``."""
    body = paper_backbone(backbone, pretrained=pretrained)
    sides = tuple(shorter_sides)
    return _with_l1(make_mask_rcnn(body, classes, PAPER, sides, longest_side))


def _with_l1(model: Any) -> nn.Module:
    """Replace torchvision's smooth L1 by the L1 of the paper's Mask R-CNN."""
    from switch_ema.zoo.models.detection.roi_losses import L1Heads, L1Proposals

    # Only methods differ; constructing both again would repeat all their settings.
    model.rpn.__class__, model.roi_heads.__class__ = L1Proposals, L1Heads
    made: nn.Module = model
    return made


def make_mask_rcnn(
    body: nn.Module,
    classes: int,
    sizes: RoISizes,
    shorter_sides: tuple[int, ...],
    longest_side: int,
) -> nn.Module:
    """Assemble torchvision's parts, with its losses."""
    faster: Any = need("torchvision.models.detection.faster_rcnn")
    anchors = need("torchvision.models.detection.anchor_utils").AnchorGenerator(
        tuple((side,) for side in sizes.anchors),
        ((0.5, 1.0, 2.0),) * len(sizes.anchors),
    )
    width: int = body.out_channels  # type: ignore[assignment]
    made: nn.Module = need("torchvision.models.detection.mask_rcnn").MaskRCNN(
        body,
        min_size=shorter_sides,
        max_size=longest_side,
        rpn_anchor_generator=anchors,
        rpn_pre_nms_top_n_train=sizes.proposals[0],
        rpn_pre_nms_top_n_test=sizes.proposals[1],
        rpn_post_nms_top_n_train=sizes.proposals[0],
        rpn_post_nms_top_n_test=sizes.proposals[1],
        rpn_batch_size_per_image=sizes.sampled_anchors,
        box_roi_pool=pooling(sizes, 0),
        box_head=faster.TwoMLPHead(width * sizes.pooled[0] ** 2, sizes.width),
        box_predictor=faster.FastRCNNPredictor(sizes.width, classes + 1),
        box_batch_size_per_image=sizes.sampled_boxes,
        box_detections_per_img=sizes.detections,
        mask_roi_pool=pooling(sizes, 1),
        mask_head=mask_head(width, sizes),
        mask_predictor=mask_predictor(classes, sizes),
        # At small scale images already have their final size; random crops are smaller.
        _skip_resize=shorter_sides == (longest_side,),
    )
    return made


def pooling(sizes: RoISizes, kind: int) -> nn.Module:
    """Make the RoI align for boxes (0) or masks (1)."""
    made: nn.Module = need("torchvision.ops").MultiScaleRoIAlign(
        list(sizes.levels), sizes.pooled[kind], sizes.sampling
    )
    return made


def mask_head(width: int, sizes: RoISizes) -> nn.Module:
    """Make the mask head's convolutions."""
    module: Any = need("torchvision.models.detection.mask_rcnn")
    made: nn.Module = module.MaskRCNNHeads(width, sizes.mask_layers, 1)
    return made


def mask_predictor(classes: int, sizes: RoISizes) -> nn.Module:
    """Make the mask head's last layers: twice the size, one channel per class."""
    module: Any = need("torchvision.models.detection.mask_rcnn")
    last = sizes.mask_layers[-1]
    made: nn.Module = module.MaskRCNNPredictor(last, last, classes + 1)
    return made
