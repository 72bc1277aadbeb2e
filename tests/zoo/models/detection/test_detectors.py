"""Sizes, losses and detections of the four detectors."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torchvision.models import resnet50

from switch_ema.bench.errors import UsageError
from switch_ema.zoo.data.shapes import draw_shapes
from switch_ema.zoo.models.detection.backbones import pretrained_weights
from switch_ema.zoo.models.detection.cascade import (
    paper_cascade_mask_rcnn,
    small_cascade_mask_rcnn,
)
from switch_ema.zoo.models.detection.mask_rcnn import (
    paper_mask_rcnn,
    small_mask_rcnn,
)
from switch_ema.zoo.models.detection.retinanet import (
    paper_retinanet,
    small_retinanet,
)
from switch_ema.zoo.models.detection.yolox import YOLOX, small_yolox, yolox_s

SMALL = {
    "retinanet": small_retinanet,
    "swin": lambda classes: small_retinanet(classes, backbone="swin-t"),
    "mask-rcnn": small_mask_rcnn,
    "cascade-mask-rcnn": small_cascade_mask_rcnn,
    "yolox": small_yolox,
}


def batch(count: int = 4) -> tuple[list[torch.Tensor], list[dict[str, Any]]]:
    examples = draw_shapes(count, torch.Generator().manual_seed(0))
    return [image / 255 for image, _ in examples], [target for _, target in examples]


@pytest.mark.parametrize(
    ("make", "classes", "parameters"),
    [
        (paper_retinanet, 90, 38_198_935),  # torchvision counts 91 with background
        (paper_mask_rcnn, 80, 44_400_693),
        (paper_cascade_mask_rcnn, 80, 77_325_377),
        (yolox_s, 80, 8_968_255),
    ],
)
def test_the_paper_s_sizes(
    make: Callable[..., nn.Module], classes: int, parameters: int
) -> None:
    with torch.device("meta"):
        model = make(classes)
    assert sum(p.numel() for p in model.parameters()) == parameters


@pytest.mark.parametrize("name", SMALL)
def test_losses_in_training_and_detections_otherwise(name: str) -> None:
    model, (images, targets) = SMALL[name](3), batch()
    losses = model(images, targets)
    total = torch.stack(list(losses.values())).sum()
    total.backward()
    assert torch.isfinite(total)
    untouched = [n for n, p in model.named_parameters() if p.grad is None]
    assert not untouched
    found = model.eval()(images)
    assert len(found) == len(images)
    for detected in found:
        assert {"boxes", "labels", "scores"} <= detected.keys()
        assert detected["boxes"].shape == (len(detected["labels"]), 4)
        if "mask" in name:
            assert detected["masks"].shape[1:] == (1, 64, 64)


@pytest.mark.parametrize("name", SMALL)
def test_an_image_without_boxes_has_a_finite_loss(name: str) -> None:
    model, (images, targets) = SMALL[name](3), batch(2)
    targets = [{key: value[:0] for key, value in target.items()} for target in targets]
    losses = model(images, targets)
    assert torch.isfinite(torch.stack(list(losses.values()))).all()


def test_yolox_scales_its_batches_and_undoes_it_in_its_boxes() -> None:
    model = YOLOX(3, depth=0.33, width=0.125, sides=(64, 96, 128), side=64)
    images, targets = batch(2)
    seen: set[int] = set()
    model.backbone.register_forward_pre_hook(lambda _, x: seen.add(x[0].shape[-1]))
    for _ in range(12):
        model(images, targets)
    assert seen == {64, 96, 128}
    wide = [torch.rand(3, 40, 100)]
    model.score_thresh = 0.0
    boxes = model.eval()(wide)[0]["boxes"]
    assert len(boxes) and boxes[:, 2].max() <= 100 and boxes[:, 3].max() <= 40
    assert boxes[:, 2].max() > 64  # in pixels of the image, not of the square


def test_yolox_recovers_a_box_that_its_head_would_put_out() -> None:
    model = small_yolox(3)
    model.use_l1 = True
    images, targets = batch(2)
    assert "loss_l1" in model(images, targets)
    with torch.no_grad():
        found = model.head(model.neck(model.backbone(torch.stack(images))))
    from switch_ema.zoo.models.detection.yolox import _encode

    raw = _encode(found.boxes[0], found.centres, found.strides)
    torch.testing.assert_close(raw, found.raw[0], atol=1e-3, rtol=1e-3)


def test_a_backbone_takes_the_weights_of_a_classifier(tmp_path: Path) -> None:
    classifier, path = resnet50(), tmp_path / "r50.pth"
    torch.save(classifier.state_dict(), path)
    model = paper_retinanet(3, pretrained=True)
    given = pretrained_weights(model, path)
    model.load_state_dict(given, strict=False)
    assert torch.equal(model.backbone.body.conv1.weight, classifier.conv1.weight)
    frozen = [n for n, p in model.named_parameters() if not p.requires_grad]
    assert "backbone.body.conv1.weight" in frozen
    assert not any("layer2" in name for name in frozen)


@pytest.mark.parametrize("content", [None, {}, {"conv1.weight": torch.zeros(1)}])
def test_weights_that_do_not_fit_are_one_sentence(tmp_path: Path, content: Any) -> None:
    path = tmp_path / "weights.pth"
    if content is not None:
        torch.save(content, path)
    with torch.device("meta"):
        model = paper_retinanet(3, pretrained=True)
    with pytest.raises(UsageError, match="weights: ") as caught:
        pretrained_weights(model, path)
    assert "\n" not in str(caught.value)
