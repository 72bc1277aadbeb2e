"""YOLOX: CSPDarknet, PAFPN and a decoupled head without anchors.

As in Ge et al., "YOLOX: Exceeding YOLO Series in 2021". YOLOX-S has depth 1/3 and width
1/2 of the full network. The model is called like torchvision's detectors: with a list
of images in [0, 1] and, in training, their targets; it returns losses in training, and
otherwise boxes, labels from 1 and scores.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce
from torch.nn.functional import interpolate, l1_loss, one_hot, pad

from switch_ema.bench.sharding import Shard
from switch_ema.zoo.data.sources import need
from switch_ema.zoo.models.detection.darknet import (
    ConvBlock,
    CSPDarknet,
    PathPyramid,
)
from switch_ema.zoo.models.detection.simota import assign

_STRIDES = (8, 16, 32)
GREY = 114 / 255
"""Grey value of the padding that makes an image square."""


class _YoloxPredictions(NamedTuple):
    """Predictions of every cell: N images, A cells, C classes."""

    boxes: Tensor
    """Corners in pixels (N, A, 4)."""
    raw: Tensor
    """Offset of the centre in cells and logarithm of the size in cells (N, A, 4)."""
    objectness: Tensor
    """Logits (N, A)."""
    classes: Tensor
    """Logits (N, A, C)."""
    centres: Tensor
    """Centres of the cells, in pixels (A, 2)."""
    strides: Tensor
    """Sides of the cells (A)."""


class YOLOX(nn.Module):
    """A YOLOX of any size.

    Args:
        classes: Number of classes; YOLOX has no background class.
        depth: Share of the full network's blocks.
        width: Share of the full network's channels.
        sides: Training scales each batch to one of these sides.
        side: Side of an image in tests.
        score_thresh: Minimum score of a detection.
        nms_thresh: IoU threshold of non-maximum suppression.
        detections: Maximum detections per image.
    """

    shard = Shard()
    """A worker's part of the batch: losses are divided by all workers' boxes."""

    def __init__(
        self,
        classes: int,
        *,
        depth: float,
        width: float,
        sides: Sequence[int],
        side: int,
        score_thresh: float = 0.01,
        nms_thresh: float = 0.65,
        detections: int = 100,
    ) -> None:
        super().__init__()
        self.backbone = CSPDarknet(depth, width)
        self.neck = PathPyramid(depth, width)
        self.head = _DecoupledHead(classes, width)
        self.classes, self.sides, self.side = classes, tuple(sides), side
        self.score_thresh, self.nms_thresh = score_thresh, nms_thresh
        self.detections = detections
        self.use_l1 = False
        """Whether to add an L1 loss on the boxes, as in the last epochs."""
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eps, module.momentum = 1e-3, 0.03

    def forward(
        self, images: list[Tensor], targets: list[dict[str, Tensor]] | None = None
    ) -> dict[str, Tensor] | list[dict[str, Tensor]]:
        """Return losses in training, detections otherwise."""
        side = self.side
        if self.training:
            chosen = torch.randint(len(self.sides), ())
            side = self.sides[int(chosen)]
        batch, scales = _letterbox(images, side)
        predictions = self.head(self.neck(self.backbone(batch)))
        if not self.training:
            return self._detect(predictions, images, scales)
        assert targets is not None
        boxes = [t["boxes"] * s for t, s in zip(targets, scales, strict=True)]
        labels = [target["labels"] - 1 for target in targets]
        return self._losses(predictions, boxes, labels)

    def _losses(
        self, found: _YoloxPredictions, boxes: list[Tensor], labels: list[Tensor]
    ) -> dict[str, Tensor]:
        """Return the losses, summed over cells and divided by the positive ones."""
        positive = torch.zeros_like(found.objectness)
        parts: list[tuple[Tensor, Tensor, Tensor, Tensor, Tensor]] = []
        for index, (true, label) in enumerate(zip(boxes, labels, strict=True)):
            cells, matched, ious = assign(
                found.boxes[index],
                found.classes[index],
                found.objectness[index],
                found.centres,
                found.strides,
                true,
                label,
            )
            positive[index, cells] = 1.0
            wanted = one_hot(label[matched], self.classes) * ious[:, None]
            parts.append(
                (
                    found.boxes[index, cells],
                    true[matched],
                    found.classes[index, cells],
                    wanted,
                    l1_loss(
                        found.raw[index, cells],
                        _encode(
                            true[matched], found.centres[cells], found.strides[cells]
                        ),
                        reduction="sum",
                    ),
                )
            )
        predicted, true, logits, wanted, distances = (
            torch.cat(column) if column[0].ndim else torch.stack(column)
            for column in zip(*parts, strict=True)
        )
        balance = self.shard.balance(len(predicted), len(boxes))
        count = max(len(predicted), 1) / balance
        overlaps = _paired_iou(predicted, true)
        losses = {
            "loss_iou": 5.0 * (1 - overlaps**2).sum() / count,
            "loss_objectness": bce(found.objectness, positive, reduction="sum") / count,
            "loss_class": bce(logits, wanted.to(logits), reduction="sum") / count,
        }
        if self.use_l1:
            losses["loss_l1"] = distances.sum() / count
        return losses

    def _detect(
        self, found: _YoloxPredictions, images: list[Tensor], scales: list[float]
    ) -> list[dict[str, Tensor]]:
        ops = need("torchvision.ops")
        results = []
        scores = found.classes.sigmoid() * found.objectness.sigmoid()[..., None]
        for index, (image, scale) in enumerate(zip(images, scales, strict=True)):
            best, labels = scores[index].max(1)
            keep = best > self.score_thresh
            best, labels = best[keep], labels[keep]
            boxes = ops.clip_boxes_to_image(
                found.boxes[index][keep] / scale, list(image.shape[-2:])
            )
            order = ops.batched_nms(boxes, best, labels, self.nms_thresh)
            order = order[: self.detections]
            results.append(
                {
                    "boxes": boxes[order],
                    "labels": labels[order] + 1,
                    "scores": best[order],
                }
            )
        return results


class _DecoupledHead(nn.Module):
    """Decoupled head: separate class and box branches on each level."""

    def __init__(self, classes: int, width: float) -> None:
        super().__init__()
        hidden = int(256 * width)
        levels = [int(channels * width) for channels in (256, 512, 1024)]
        self.stems = nn.ModuleList(ConvBlock(c, hidden, 1) for c in levels)
        self.class_branches = nn.ModuleList(_branch(hidden) for _ in levels)
        self.box_branches = nn.ModuleList(_branch(hidden) for _ in levels)
        self.to_class = nn.ModuleList(nn.Conv2d(hidden, classes, 1) for _ in levels)
        self.to_box = nn.ModuleList(nn.Conv2d(hidden, 4, 1) for _ in levels)
        self.to_objectness = nn.ModuleList(nn.Conv2d(hidden, 1, 1) for _ in levels)
        # Start with an object probability of 1%, since objects are rare.
        for module in (*self.to_class, *self.to_objectness):
            assert isinstance(module, nn.Conv2d) and module.bias is not None
            nn.init.constant_(module.bias, -4.595)

    def forward(self, features: list[Tensor]) -> _YoloxPredictions:
        """Predict from the features of the three levels."""
        raws, objectness, classes, cells, strides = [], [], [], [], []
        for level, x in enumerate(features):
            x = self.stems[level](x)
            box = self.box_branches[level](x)
            classes.append(_flat(self.to_class[level](self.class_branches[level](x))))
            raws.append(_flat(self.to_box[level](box)))
            objectness.append(_flat(self.to_objectness[level](box))[..., 0])
            corners = _corners(x)
            cells.append((corners + 0.5) * _STRIDES[level])
            strides.append(corners.new_full((len(corners),), _STRIDES[level]))
        raw, stride = torch.cat(raws, 1), torch.cat(strides)
        centres = torch.cat(cells)
        # Offsets are relative to the corner of a cell, as published.
        middle = raw[..., :2] * stride[:, None] + (centres - 0.5 * stride[:, None])
        half = raw[..., 2:].exp() * stride[:, None] / 2
        return _YoloxPredictions(
            torch.cat([middle - half, middle + half], 2),
            raw,
            torch.cat(objectness, 1),
            torch.cat(classes, 1),
            centres,
            stride,
        )


def small_yolox(classes: int, *, side: int = 64) -> YOLOX:
    """Make a YOLOX of an eighth of the full width, for small images of a fixed size."""
    side = -(-side // 32) * 32
    return YOLOX(classes, depth=0.33, width=0.125, sides=(side,), side=side)


def yolox_s(
    classes: int, *, side: int = 640, sides: Sequence[int] = range(448, 833, 32)
) -> YOLOX:
    """Make the YOLOX-S of the paper, which trains at sides of 448 to 832 pixels."""
    return YOLOX(classes, depth=0.33, width=0.5, sides=sides, side=side)


def _branch(width: int) -> nn.Sequential:
    return nn.Sequential(ConvBlock(width, width, 3), ConvBlock(width, width, 3))


def _flat(x: Tensor) -> Tensor:
    """Turn (N, C, H, W) into (N, H * W, C)."""
    return x.flatten(2).transpose(1, 2)


def _corners(x: Tensor) -> Tensor:
    """Return column and row of each cell of a level (H * W, 2)."""
    height, width = x.shape[-2:]
    rows, columns = torch.meshgrid(
        torch.arange(height, device=x.device),
        torch.arange(width, device=x.device),
        indexing="ij",
    )
    return torch.stack([columns, rows], 2).reshape(-1, 2).to(x.dtype)


def _encode(boxes: Tensor, centres: Tensor, strides: Tensor) -> Tensor:
    """Return the head's regression target for a box."""
    sizes = (boxes[:, 2:] - boxes[:, :2]) / strides[:, None]
    middles = (boxes[:, :2] + boxes[:, 2:]) / 2
    offsets = middles / strides[:, None] - (centres / strides[:, None] - 0.5)
    return torch.cat([offsets, (sizes + 1e-8).log()], 1)


def _paired_iou(a: Tensor, b: Tensor) -> Tensor:
    low, high = torch.maximum(a[:, :2], b[:, :2]), torch.minimum(a[:, 2:], b[:, 2:])
    overlap = (high - low).clamp(min=0).prod(1)
    areas = [(box[:, 2:] - box[:, :2]).prod(1) for box in (a, b)]
    return overlap / (areas[0] + areas[1] - overlap + 1e-16)


def _letterbox(images: list[Tensor], side: int) -> tuple[Tensor, list[float]]:
    """Scale images to fit a square; pad with grey on the right and below."""
    batch, scales = [], []
    for image in images:
        height, width = image.shape[-2:]
        scale = min(side / height, side / width)
        if scale != 1.0:
            size = (round(height * scale), round(width * scale))
            image = interpolate(
                image[None], size, mode="bilinear", align_corners=False
            )[0]
        missing = (0, side - image.shape[-1], 0, side - image.shape[-2])
        batch.append(pad(image, missing, value=GREY))
        scales.append(scale)
    return torch.stack(batch), scales
