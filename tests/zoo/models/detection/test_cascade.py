"""Each stage of a cascade moves its boxes closer to the true ones."""

import torch
from torchvision.ops import box_iou

from switch_ema.zoo.data.shapes import draw_shapes
from switch_ema.zoo.models.detection.cascade import (
    CascadeHeads,
    small_cascade_mask_rcnn,
)


def mean_iou_by_stage(model, examples, least=0.4):
    """Follow the proposals that begin near a true box, through the stages."""
    images, _ = model.transform([image / 255 for image, _ in examples])
    features = model.backbone(images.tensors)
    proposals, _ = model.rpn(images, features)
    sizes = images.image_sizes
    stages = model.roi_heads.proposals_by_stage(features, proposals, sizes)
    sums = torch.zeros(len(stages))
    count = 0
    for index, (_, target) in enumerate(examples):
        ious = [box_iou(boxes[index], target["boxes"]).amax(1) for boxes in stages]
        near = ious[0] >= least
        count += int(near.sum())
        sums += torch.stack([iou[near].sum() for iou in ious])
    return (sums / count).tolist()


def test_the_mean_iou_of_proposals_rises_from_stage_to_stage():
    examples = draw_shapes(8, torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    model = small_cascade_mask_rcnn(3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step in range(80):
        half = examples[step % 2 :: 2]
        losses = model([image / 255 for image, _ in half], [t for _, t in half])
        loss = torch.stack(list(losses.values())).sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
    with torch.no_grad():
        ious = mean_iou_by_stage(model.eval(), examples)
    assert len(ious) == 4
    assert ious == sorted(ious) and ious[-1] > ious[0] + 0.05


def test_a_stage_asks_for_better_boxes_than_the_one_before():
    heads = small_cascade_mask_rcnn(3).roi_heads
    assert isinstance(heads, CascadeHeads)
    thresholds = [stage.proposal_matcher.high_threshold for stage in heads.stages]
    assert thresholds == [0.5, 0.6, 0.7]
