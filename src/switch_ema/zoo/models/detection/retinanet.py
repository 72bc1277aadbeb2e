"""RetinaNet: one stage, dense anchors, focal loss (Lin et al., 2017)."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from torch import nn

from switch_ema.zoo.data.sources import need
from switch_ema.zoo.models.detection.backbones import paper_backbone, small_backbone


def small_retinanet(
    classes: int, *, backbone: str = "resnet50", side: int = 64, smallest: float = 8.0
) -> nn.Module:
    """Make a RetinaNet for small images.

    Args:
        classes: Without the background.
        backbone: Name of the backbone, whose small version is used.
        side: Longest side of an image.
        smallest: Side of the smallest anchor, on the finest level; doubles with each
            level.
    """
    module: Any = need("torchvision.models.detection.retinanet")
    sizes = tuple(
        tuple(smallest * 2**level * 2 ** (third / 3) for third in range(3))
        for level in range(3)
    )
    anchors = need("torchvision.models.detection.anchor_utils").AnchorGenerator(
        sizes, ((1.0,),) * 3
    )
    body = small_backbone(backbone)
    head = module.RetinaNetHead(
        body.out_channels, 3, classes + 1, norm_layer=partial(nn.GroupNorm, 8)
    )
    return _make(module, body, classes, anchors, head, (side,), side)


def paper_retinanet(
    classes: int,
    *,
    backbone: str = "resnet50",
    pretrained: bool = False,
    shorter_sides: Sequence[int] = (800,),
    longest_side: int = 1333,
) -> nn.Module:
    """Make the paper's RetinaNet: torchvision's second version.

    Args:
        classes: Without the background.
        backbone: ``resnet50`` or ``swin-t``.
        pretrained: Whether pre-trained weights will be loaded.
        shorter_sides: Training scales an image's shorter side to one of these; tests
            use the last.
        longest_side: Limit of the longer side after scaling.
    """
    module: Any = need("torchvision.models.detection.retinanet")
    anchors = module._default_anchorgen()
    body = paper_backbone(backbone, pretrained=pretrained, retinanet=True)
    head = module.RetinaNetHead(
        body.out_channels,
        anchors.num_anchors_per_location()[0],
        classes + 1,
        norm_layer=partial(nn.GroupNorm, 32),
    )
    head.regression_head._loss_type = "giou"
    sides = tuple(shorter_sides)
    return _make(module, body, classes, anchors, head, sides, longest_side)


def _make(
    module: Any,
    body: nn.Module,
    classes: int,
    anchors: Any,
    head: nn.Module,
    shorter_sides: tuple[int, ...],
    longest_side: int,
) -> nn.Module:
    made: nn.Module = module.RetinaNet(
        body,
        classes + 1,
        anchor_generator=anchors,
        head=head,
        min_size=shorter_sides,
        max_size=longest_side,
        detections_per_img=100,
        # At small scale images already have their final size; random crops are smaller.
        _skip_resize=shorter_sides == (longest_side,),
    )
    return made
