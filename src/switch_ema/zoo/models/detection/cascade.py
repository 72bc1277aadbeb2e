"""Cascade Mask R-CNN: three stages with increasing IoU thresholds.

Each stage refines the boxes of the previous one; its positives are boxes with an IoU of
at least 0.5, 0.6 and 0.7 (Cai and Vasconcelos, "Cascade R-CNN", 2019). The stages'
losses are weighted by 1, 0.5 and 0.25; boxes have smooth L1 with beta 1. In tests,
boxes come from the last stage; class probabilities are the mean softmax of the three
classifiers on the last stage's input boxes, and masks are the mean of the three mask
heads on the final boxes.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from switch_ema.bench.sharding import Shard
from switch_ema.zoo.data.sources import need
from switch_ema.zoo.models.detection.backbones import paper_backbone, small_backbone
from switch_ema.zoo.models.detection.mask_rcnn import (
    PAPER,
    SMALL,
    RoISizes,
    make_mask_rcnn,
    mask_head,
    mask_predictor,
    pooling,
)

_IOUS = (0.5, 0.6, 0.7)
_LOSS_WEIGHTS = (1.0, 0.5, 0.25)
_CODER_WEIGHTS = (
    (10.0, 10.0, 5.0, 5.0),
    (20.0, 20.0, 10.0, 10.0),
    (30.0, 30.0, 15.0, 15.0),
)
"""Weights of the regression targets: later stages move boxes by less."""


def small_cascade_mask_rcnn(
    classes: int,
    *,
    backbone: str = "resnet50",
    side: int = 64,
    sizes: RoISizes = SMALL,
) -> nn.Module:
    """Make a cascade for small images; ``classes`` are without the background."""
    return _make(small_backbone(backbone), classes, sizes, (side,), side)


def paper_cascade_mask_rcnn(
    classes: int,
    *,
    backbone: str = "resnet50",
    pretrained: bool = False,
    shorter_sides: Sequence[int] = (800,),
    longest_side: int = 1333,
) -> nn.Module:
    """Make the paper's cascade; for the arguments see ``paper_retinanet``."""
    body = paper_backbone(backbone, pretrained=pretrained)
    return _make(body, classes, PAPER, tuple(shorter_sides), longest_side)


class CascadeHeads(nn.Module):
    """Three of torchvision's RoI heads in a row.

    Args:
        width: Channels of the features.
        classes: Without the background.
        sizes: Sizes of the heads.
    """

    shard = Shard()

    def __init__(self, width: int, classes: int, sizes: RoISizes) -> None:
        super().__init__()
        self.stages = nn.ModuleList(
            _stage(width, classes, sizes, iou, weights)
            for iou, weights in zip(_IOUS, _CODER_WEIGHTS, strict=True)
        )
        self._heads: Any = need("torchvision.models.detection.roi_heads")
        self._boxes: Any = need("torchvision.ops.boxes")

    def forward(
        self,
        features: dict[str, Tensor],
        proposals: list[Tensor],
        image_shapes: list[tuple[int, int]],
        targets: list[dict[str, Tensor]] | None = None,
    ) -> tuple[list[dict[str, Tensor]], dict[str, Tensor]]:
        """Return detections in tests, losses in training."""
        if self.training:
            assert targets is not None
            losses: dict[str, Tensor] = {}
            for number, stage in enumerate(self.stages):
                found, proposals = self._train_stage(
                    stage, features, proposals, image_shapes, targets
                )
                for name, loss in found.items():
                    losses[f"{name}_{number}"] = _LOSS_WEIGHTS[number] * loss
            return [], losses
        return self._detect(features, proposals, image_shapes), {}

    def proposals_by_stage(
        self,
        features: dict[str, Tensor],
        proposals: list[Tensor],
        image_shapes: list[tuple[int, int]],
    ) -> list[list[Tensor]]:
        """Return the boxes before the first stage and after each stage."""
        steps = [proposals]
        for stage in self.stages:
            _, moves = self._classify(stage, features, steps[-1], image_shapes)
            steps.append(self._moved(stage, moves, steps[-1], image_shapes))
        return steps

    def _classify(
        self,
        stage: Any,
        features: dict[str, Tensor],
        proposals: list[Tensor],
        image_shapes: list[tuple[int, int]],
    ) -> tuple[Tensor, Tensor]:
        """Return the class logits and the 4 box offsets."""
        pooled = stage.box_roi_pool(features, proposals, image_shapes)
        logits, moves = stage.box_predictor(stage.box_head(pooled))
        return logits, moves

    def _moved(
        self,
        stage: Any,
        moves: Tensor,
        proposals: list[Tensor],
        image_shapes: list[tuple[int, int]],
    ) -> list[Tensor]:
        counts = [len(boxes) for boxes in proposals]
        moved = stage.box_coder.decode(moves.detach(), proposals).reshape(-1, 4)
        return [
            self._boxes.clip_boxes_to_image(boxes, shape)
            for boxes, shape in zip(
                torch.split(moved, counts), image_shapes, strict=True
            )
        ]

    def _train_stage(
        self,
        stage: Any,
        features: dict[str, Tensor],
        proposals: list[Tensor],
        image_shapes: list[tuple[int, int]],
        targets: list[dict[str, Tensor]],
    ) -> tuple[dict[str, Tensor], list[Tensor]]:
        from switch_ema.zoo.models.detection.roi_losses import train_heads

        trained = train_heads(
            stage,
            features,
            proposals,
            image_shapes,
            targets,
            beta=1.0,
            shard=self.shard,
        )
        sampled = trained.sampled
        moved = self._moved(stage, trained.moves, sampled, image_shapes)
        # Drop the true boxes from the samples; the next stage adds them anyway.
        truths = [target["boxes"] for target in targets]
        own = [
            ~(before[:, None] == truth[None]).all(2).any(1)
            for before, truth in zip(sampled, truths, strict=True)
        ]
        kept = [box[keep] for box, keep in zip(moved, own, strict=True)]
        return trained.losses, kept

    def _mask_logits(
        self,
        stage: Any,
        features: dict[str, Tensor],
        boxes: list[Tensor],
        image_shapes: list[tuple[int, int]],
    ) -> Tensor:
        pooled = stage.mask_roi_pool(features, boxes, image_shapes)
        logits: Tensor = stage.mask_predictor(stage.mask_head(pooled))
        return logits

    def _detect(
        self,
        features: dict[str, Tensor],
        proposals: list[Tensor],
        image_shapes: list[tuple[int, int]],
    ) -> list[dict[str, Tensor]]:
        last: Any = self.stages[-1]
        received = self.proposals_by_stage(features, proposals, image_shapes)[-2]
        outputs = [
            self._classify(stage, features, received, image_shapes)
            for stage in self.stages
        ]
        mean = torch.stack([logits.softmax(1) for logits, _ in outputs]).mean(0)
        moves = outputs[-1][1].repeat(1, mean.shape[1])
        # The softmax in torchvision's post-processing undoes the logarithm.
        boxes, scores, labels = last.postprocess_detections(
            mean.log(), moves, received, image_shapes
        )
        masks = torch.stack(
            [
                torch.cat(
                    self._heads.maskrcnn_inference(
                        self._mask_logits(stage, features, boxes, image_shapes), labels
                    )
                )
                for stage in self.stages
            ]
        ).mean(0)
        counts = [len(found) for found in boxes]
        return [
            {"boxes": b, "scores": s, "labels": label, "masks": m}
            for b, s, label, m in zip(
                boxes, scores, labels, torch.split(masks, counts), strict=True
            )
        ]


def _stage(
    width: int,
    classes: int,
    sizes: RoISizes,
    iou: float,
    weights: tuple[float, float, float, float],
) -> nn.Module:
    faster: Any = need("torchvision.models.detection.faster_rcnn")
    predictor = faster.FastRCNNPredictor(sizes.width, classes + 1)
    predictor.bbox_pred = nn.Linear(sizes.width, 4)  # one box for all classes
    made: nn.Module = need("torchvision.models.detection.roi_heads").RoIHeads(
        pooling(sizes, 0),
        faster.TwoMLPHead(width * sizes.pooled[0] ** 2, sizes.width),
        predictor,
        fg_iou_thresh=iou,
        bg_iou_thresh=iou,
        batch_size_per_image=sizes.sampled_boxes,
        positive_fraction=0.25,
        bbox_reg_weights=weights,
        score_thresh=0.05,
        nms_thresh=0.5,
        detections_per_img=sizes.detections,
        mask_roi_pool=pooling(sizes, 1),
        mask_head=mask_head(width, sizes),
        mask_predictor=mask_predictor(classes, sizes),
    )
    return made


def _make(
    body: nn.Module,
    classes: int,
    sizes: RoISizes,
    shorter_sides: tuple[int, ...],
    longest_side: int,
) -> nn.Module:
    """Replace the heads of a Mask R-CNN."""
    made = make_mask_rcnn(body, classes, sizes, shorter_sides, longest_side)
    width: int = body.out_channels  # type: ignore[assignment]
    made.roi_heads = CascadeHeads(width, classes, sizes)
    return made
