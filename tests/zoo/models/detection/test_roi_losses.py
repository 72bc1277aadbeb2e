"""Box losses of Mask R-CNN and Cascade Mask R-CNN, worked out by hand."""

import pytest
import torch

from switch_ema.zoo.data.shapes import draw_shapes
from switch_ema.zoo.models.detection.cascade import small_cascade_mask_rcnn
from switch_ema.zoo.models.detection.mask_rcnn import small_mask_rcnn
from switch_ema.zoo.models.detection.roi_losses import box_loss

LABELS = torch.tensor([0, 2, 1])
OFFSETS = torch.tensor([0.5, 2.0, 0.5, 2.0])
TARGETS = torch.tensor([[9.0] * 4, [0.5, 0, 0, 2], [0, 0.1, 0, 0]])


@pytest.mark.parametrize(
    ("beta", "sum_of_errors"),
    [
        (0, 0.5 + 2 + 0.1),
        (1, 0.5**2 / 2 + (2 - 0.5) + 0.1**2 / 2),
        (1 / 9, (0.5 - 1 / 18) + (2 - 1 / 18) + 0.1**2 / (2 / 9)),
    ],
)
def test_sums_the_errors_of_positives_over_all_boxes(beta, sum_of_errors):
    shared = torch.zeros(3, 4)
    found = box_loss(shared, LABELS, TARGETS, beta=beta)
    assert found.item() == pytest.approx(sum_of_errors / 3)
    by_class = torch.full((3, 3, 4), 7.0)  # the other classes' boxes do not count
    by_class[1, 2] = by_class[2, 1] = 0
    found = box_loss(by_class.flatten(1), LABELS, TARGETS, beta=beta)
    assert found.item() == pytest.approx(sum_of_errors / 3)


def losses_and_samples(model, stages):
    """Train on two images with constant offsets; return losses and samples."""
    samples = []
    for stage in stages:
        last = stage.box_predictor.bbox_pred
        torch.nn.init.zeros_(last.weight)
        last.bias.data = OFFSETS.repeat(len(last.bias) // 4)
        draw = stage.select_training_samples

        def recorded(*inputs, draw=draw):
            drawn = draw(*inputs)
            samples.append((torch.cat(drawn[2]), torch.cat(drawn[3])))
            return drawn

        stage.select_training_samples = recorded
    examples = draw_shapes(2, torch.Generator().manual_seed(0))
    losses = model([image / 255 for image, _ in examples], [t for _, t in examples])
    return losses, samples


def test_mask_rcnn_has_l1_for_boxes():
    torch.manual_seed(0)
    model = small_mask_rcnn(3)
    losses, [(labels, targets)] = losses_and_samples(model, [model.roi_heads])
    errors = (OFFSETS - targets[labels > 0]).abs().sum() / len(labels)
    assert errors > 0.1
    assert losses["loss_box_reg"].item() == pytest.approx(errors.item(), rel=1e-5)
    assert set(losses) == {
        "loss_objectness",
        "loss_rpn_box_reg",
        "loss_classifier",
        "loss_box_reg",
        "loss_mask",
    }
    assert set(model.eval()([torch.rand(3, 64, 64)])[0]) == {
        "boxes",
        "labels",
        "scores",
        "masks",
    }


def test_cascade_has_smooth_l1_with_beta_1_in_all_stages():
    torch.manual_seed(0)
    model = small_cascade_mask_rcnn(3)
    losses, samples = losses_and_samples(model, model.roi_heads.stages)
    for number, (labels, targets) in enumerate(samples):
        size = (OFFSETS - targets[labels > 0]).abs()
        smooth = torch.where(size < 1, size.square() / 2, size - 0.5)
        errors = 0.5**number * smooth.sum().item() / len(labels)
        assert errors > 0
        assert losses[f"loss_box_reg_{number}"].item() == pytest.approx(
            errors, rel=1e-5
        )


def test_proposals_have_l1_in_mask_rcnn_and_a_beta_of_one_ninth_in_the_cascade():
    labels = [torch.tensor([1.0, 0.0, -1.0])]  # an object, background, ignored
    targets = [torch.tensor([[0.5, 0, 0, 0.1], [9.0] * 4, [9.0] * 4])]
    inputs = torch.zeros(3, 1), torch.zeros(3, 4), labels, targets
    objects, boxes = small_mask_rcnn(3).rpn.compute_loss(*inputs)
    assert objects.item() == pytest.approx(0.693147)  # ln 2 for logits of 0
    assert boxes.item() == pytest.approx((0.5 + 0.1) / 2)
    _, boxes = small_cascade_mask_rcnn(3).rpn.compute_loss(*inputs)
    assert boxes.item() == pytest.approx((0.5 - 1 / 18 + 0.1**2 / (2 / 9)) / 2)
