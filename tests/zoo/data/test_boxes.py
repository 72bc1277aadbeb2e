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


def centred_square() -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """A white square in the left half of a black image."""
    image = torch.zeros(3, 64, 64, dtype=torch.uint8)
    image[:, 20:40, 4:24] = 255
    boxes = torch.tensor([[4.0, 20, 24, 40]])
    labels, crowd = torch.tensor([1]), torch.tensor([0])
    return image, {"boxes": boxes, "labels": labels, "iscrowd": crowd}


def test_mosaics_shift_by_a_tenth_of_the_side() -> None:
    """The shift is a share of the result, half as wide as the canvas."""
    examples = MosaicMixUp([centred_square()], 640)
    affine = examples._affine._transform.transforms[0]
    canvas = 2 * 640
    assert [share * canvas for share in affine.translate] == [64, 64]
    assert (affine.degrees, affine.scale) == ([-10, 10], (0.1, 2.0))


def test_half_of_the_partners_of_mixup_are_mirrored() -> None:
    torch.manual_seed(1)
    examples = MosaicMixUp([centred_square()], 64)
    image, target = torch.zeros(3, 64, 64, dtype=torch.uint8), centred_square()[1]
    mirrored = 0
    for _ in range(60):
        mixed, found = examples._mixed(image, target)
        assert len(found["boxes"]) <= 2
        for x1, y1, x2, y2 in found["boxes"][1:].int().tolist():
            assert (mixed[0, y1 + 1 : y2 - 1, x1 + 1 : x2 - 1] > 100).all()
        # The partner fills columns up to its side; its square is left or right in it.
        columns = (mixed[0] < 50).any(0).nonzero().flatten()  # black half of its own
        white = (mixed[0] > 100).any(0).nonzero().flatten()
        if len(columns) and len(white):
            mirrored += int(white.float().mean() > columns.float().mean())
    assert 15 < mirrored < 45
