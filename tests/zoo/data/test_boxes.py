import torch

from switch_ema.zoo.data.boxes import MosaicMixUp, fitted, flipping
from switch_ema.zoo.data.shapes import draw_shapes

EXAMPLES = draw_shapes(12, torch.Generator().manual_seed(0))


def test_flipping_moves_boxes_and_masks_with_the_image() -> None:
    transform = flipping()
    image, target = EXAMPLES[0]
    results = [transform(image, target) for _ in range(10)]
    flipped = [r for r in results if not torch.equal(r[0], image)]
    assert 0 < len(flipped) < 10
    changed, found = flipped[0]
    assert torch.equal(changed, image.flip(2))
    assert torch.equal(found["masks"], target["masks"].flip(2))
    x1, y1, x2, y2 = target["boxes"].unbind(1)
    assert torch.equal(found["boxes"], torch.stack([64 - x2, y1, 64 - x1, y2], 1))


def test_what_a_crop_cuts_off_is_dropped() -> None:
    transform = flipping(crop=24)
    for image, target in EXAMPLES:
        cropped, found = transform(image, target)
        assert cropped.shape == (3, 24, 24)
        assert len(found["boxes"]) == len(found["labels"]) == len(found["masks"])
        assert found["boxes"].numel() == 0 or found["boxes"].max() <= 24


def test_mosaic_joins_images_and_keeps_boxes_inside() -> None:
    torch.manual_seed(0)
    examples = MosaicMixUp(EXAMPLES, 64, scale=(0.5, 1.5))
    counts = []
    for index in range(len(examples)):
        image, target = examples[index]
        counts.append(len(target["labels"]))
        assert image.shape == (3, 64, 64) and image.dtype == torch.uint8
        assert ((target["boxes"] >= 0) & (target["boxes"] <= 64)).all()
        assert len(target["boxes"]) == len(target["labels"])
    plain = sum(len(target["labels"]) for _, target in EXAMPLES)
    assert sum(counts) > plain


def test_a_pasted_box_stays_on_its_shape() -> None:
    """A white square on black is found by its brightness wherever it has gone."""
    image = torch.zeros(3, 64, 64, dtype=torch.uint8)
    image[:, 20:40, 10:30] = 255
    target = {
        "boxes": torch.tensor([[10.0, 20, 30, 40]]),
        "labels": torch.tensor([1]),
        "iscrowd": torch.tensor([0]),
    }
    examples = MosaicMixUp([(image, target)], 64)
    canvas, found = examples._four(0)
    assert canvas.shape == (3, 128, 128)
    for x1, y1, x2, y2 in found["boxes"].int().tolist():
        assert (canvas[0, y1:y2, x1:x2] == 255).all()
    assert (canvas[0] == 255).sum() == sum(
        (x2 - x1) * (y2 - y1) for x1, y1, x2, y2 in found["boxes"].int().tolist()
    )


def test_fitting_scales_the_boxes() -> None:
    image, target = EXAMPLES[0]
    scaled, found = fitted(image, target, 32)
    assert scaled.shape == (3, 32, 32)
    assert torch.equal(found["boxes"], target["boxes"] / 2)
