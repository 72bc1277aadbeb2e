"""Losses of the box and mask heads as in MMDetection, for torchvision's parts.

torchvision has smooth L1 with beta 1/9 everywhere. The paper's Mask R-CNN has L1 for
proposals and boxes; its Cascade Mask R-CNN has smooth L1 with beta 1 in every stage,
and with beta 1/9 for proposals. Import this module only where torchvision is installed.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import (
    binary_cross_entropy_with_logits,
    cross_entropy,
    l1_loss,
    smooth_l1_loss,
)
from torchvision.models.detection.roi_heads import RoIHeads, maskrcnn_loss
from torchvision.models.detection.rpn import RegionProposalNetwork

from switch_ema.bench.sharding import Shard

Features = dict[str, Tensor]
Shapes = list[tuple[int, int]]
Targets = list[dict[str, Tensor]]


@dataclass(frozen=True)
class TrainedHeads:
    """Losses of some heads, and the boxes that they were computed from."""

    losses: dict[str, Tensor]
    sampled: list[Tensor]
    moves: Tensor
    """Predicted box offsets."""


def train_heads(
    heads: Any,
    features: Features,
    proposals: list[Tensor],
    shapes: Shapes,
    targets: Targets,
    *,
    beta: float,
    shard: Shard,
) -> TrainedHeads:
    """Sample boxes and compute the losses of torchvision's RoI heads.

    Args:
        heads: With one box for each class, or one for all classes.
        features: Of the backbone, by level.
        proposals: Boxes of each image.
        shapes: Height and width of each image.
        targets: True boxes, labels and masks of each image.
        beta: Where smooth L1 turns from a parabola into a line; 0 is L1.
        shard: The losses are means over the boxes of all workers.
    """
    sampled, matched, by_image, regression = heads.select_training_samples(
        proposals, targets
    )
    pooled = heads.box_roi_pool(features, sampled, shapes)
    logits, moves = heads.box_predictor(heads.box_head(pooled))
    labels = torch.cat(by_image)
    masks = [label > 0 for label in by_image]
    chosen = [box[mask] for box, mask in zip(sampled, masks, strict=True)]
    predicted = heads.mask_predictor(
        heads.mask_head(heads.mask_roi_pool(features, chosen, shapes))
    )
    boxes, positive = (
        shard.balance(sum(map(len, found)), len(targets)) for found in (sampled, chosen)
    )
    losses = {
        "loss_classifier": boxes * cross_entropy(logits, labels),
        "loss_box_reg": boxes
        * box_loss(moves, labels, torch.cat(regression), beta=beta),
        "loss_mask": positive
        * maskrcnn_loss(
            predicted,
            chosen,
            [target["masks"] for target in targets],
            [target["labels"] for target in targets],
            [index[mask] for index, mask in zip(matched, masks, strict=True)],
        ),
    }
    return TrainedHeads(losses, sampled, moves)


def box_loss(moves: Tensor, labels: Tensor, targets: Tensor, *, beta: float) -> Tensor:
    """Return the sum of the errors of positive boxes, divided by all sampled boxes.

    Args:
        moves: 4 offsets for each class, or 4 for all classes.
        labels: 0 is the background.
        targets: The true offsets.
        beta: Where smooth L1 turns from a parabola into a line; 0 is L1.
    """
    positive = torch.where(labels > 0)[0]
    by_class = moves.reshape(len(moves), moves.shape[1] // 4, 4)
    which = labels[positive] if by_class.shape[1] > 1 else torch.zeros_like(positive)
    errors = smooth_l1_loss(
        by_class[positive, which], targets[positive], beta=beta, reduction="sum"
    )
    return errors / len(labels)


class L1Heads(RoIHeads):  # type: ignore[misc]
    """RoI heads with L1 as the box loss."""

    shard = Shard()

    def forward(
        self,
        features: Features,
        proposals: list[Tensor],
        image_shapes: Shapes,
        targets: Targets | None = None,
    ) -> tuple[list[dict[str, Tensor]], dict[str, Tensor]]:
        """Return detections in tests, losses in training."""
        if not self.training:
            detections: list[dict[str, Tensor]]
            detections, losses = super().forward(features, proposals, image_shapes)
            return detections, losses
        assert targets is not None
        trained = train_heads(
            self,
            features,
            proposals,
            image_shapes,
            targets,
            beta=0,
            shard=self.shard,
        )
        return [], trained.losses


class L1Proposals(RegionProposalNetwork):  # type: ignore[misc]
    """A region proposal network with L1 as the box loss."""

    shard = Shard()

    def compute_loss(
        self,
        objectness: Tensor,
        pred_bbox_deltas: Tensor,
        labels: list[Tensor],
        regression_targets: list[Tensor],
    ) -> tuple[Tensor, Tensor]:
        """Return the losses of objectness and boxes, over the sampled anchors."""
        positive, negative = (
            torch.cat(masks).bool() for masks in self.fg_bg_sampler(labels)
        )
        sampled = positive | negative
        boxes = l1_loss(
            pred_bbox_deltas[positive],
            torch.cat(regression_targets)[positive],
            reduction="sum",
        )
        objects = binary_cross_entropy_with_logits(
            objectness.flatten()[sampled], torch.cat(labels)[sampled]
        )
        balance = self.shard.balance(int(sampled.sum()), len(labels))
        return balance * objects, balance * boxes / sampled.sum()
