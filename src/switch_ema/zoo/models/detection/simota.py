"""SimOTA: assigns YOLOX's predictions to true boxes.

For one image with predictions i and true boxes j the cost of a pair is

    c_ij = BCE(sqrt(p_i o_i), class_j) - 3 log(IoU_ij) + 1e5 [i is not central in j]

with class probabilities p and objectness o. Candidates are predictions whose cell
centre is inside some true box, or within 2.5 cells of some true centre; they are
central in j if both hold for j. Box j gets its k_j cheapest candidates, where k_j is
the sum of its ten largest IoUs, rounded down, at least 1. A prediction claimed by
several boxes goes to the one with the lowest cost (Ge et al., "YOLOX: Exceeding YOLO
Series in 2021").
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy, one_hot

from switch_ema.zoo.data.sources import need

_RADIUS = 2.5
_CANDIDATES = 10
IOU_WEIGHT, OUTSIDE = 3.0, 1e5


class Assignment(NamedTuple):
    """Positive predictions and their targets."""

    positive: Tensor
    """Indices of predictions (m), ascending."""
    matched: Tensor
    """Index of the true box of each (m)."""
    ious: Tensor
    """IoU of each with its true box (m)."""


@torch.no_grad()
def assign(
    boxes: Tensor,
    classes: Tensor,
    objectness: Tensor,
    centres: Tensor,
    strides: Tensor,
    true_boxes: Tensor,
    true_labels: Tensor,
) -> Assignment:
    """Match the predictions of one image with its true boxes.

    Args:
        boxes: Predicted corners (n, 4), in pixels.
        classes: Class logits (n, C).
        objectness: Objectness logits (n).
        centres: Centres of the predicting cells (n, 2), in pixels.
        strides: Sides of those cells (n).
        true_boxes: True corners (g, 4).
        true_labels: True labels from 0 (g).
    """
    nothing = torch.zeros(0, dtype=torch.int64, device=boxes.device)
    if not len(true_boxes):
        return Assignment(nothing, nothing, boxes.new_zeros(0))
    inside, near = _geometry(centres, strides, true_boxes)
    candidates = torch.where((inside | near).any(1))[0]
    if not len(candidates):
        return Assignment(nothing, nothing, boxes.new_zeros(0))
    ious = need("torchvision.ops").box_iou(boxes[candidates], true_boxes)
    central = (inside & near)[candidates]
    cost = _cost(
        classes[candidates], objectness[candidates], ious, central, true_labels
    )
    chosen = _cheapest(cost, ious)
    wanted = torch.where(chosen.any(1))[0]
    # As published, a contested prediction goes to the cheapest of all boxes, which need
    # not be one of those that claim it.
    several = chosen.sum(1) > 1
    matched = torch.where(several, cost.argmin(1), chosen.int().argmax(1))[wanted]
    return Assignment(candidates[wanted], matched, ious[wanted, matched])


def _geometry(centres: Tensor, strides: Tensor, boxes: Tensor) -> tuple[Tensor, Tensor]:
    """Return two masks (n, g): cell centre inside the box, and near its centre."""
    points = centres[:, None]
    inside = ((points > boxes[None, :, :2]) & (points < boxes[None, :, 2:])).all(2)
    middles = (boxes[:, :2] + boxes[:, 2:]) / 2
    distance = (points - middles[None]).abs().amax(2)
    return inside, distance < _RADIUS * strides[:, None]


def _cost(
    classes: Tensor, objectness: Tensor, ious: Tensor, central: Tensor, labels: Tensor
) -> Tensor:
    scores = (classes.float().sigmoid() * objectness.float().sigmoid()[:, None]).sqrt()
    shape = (len(scores), len(labels), scores.shape[1])
    truth = one_hot(labels, scores.shape[1]).to(scores)[None].expand(shape)
    predicted = scores[:, None].expand(shape)
    classification = binary_cross_entropy(predicted, truth, reduction="none").sum(2)
    geometry = IOU_WEIGHT * -(ious + 1e-8).log()
    return classification + geometry + OUTSIDE * (~central).to(scores)


def _cheapest(cost: Tensor, ious: Tensor) -> Tensor:
    """Return (n, g): whether a box claims a candidate."""
    most = min(_CANDIDATES, len(ious))
    counts = ious.topk(most, dim=0).values.sum(0).int().clamp(min=1)
    ranks = cost.argsort(dim=0, stable=True).argsort(dim=0)
    return ranks < counts[None]
