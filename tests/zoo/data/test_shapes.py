import torch
from torchvision.ops import masks_to_boxes

from switch_ema.zoo.data.shapes import draw_shapes


def drawn(count: int, seed: int = 0) -> list[tuple[torch.Tensor, dict]]:
    return draw_shapes(count, torch.Generator().manual_seed(seed))


def test_boxes_fit_the_masks() -> None:
    for image, target in drawn(30):
        boxes = masks_to_boxes(target["masks"])
        boxes[:, 2:] += 1
        assert torch.equal(boxes, target["boxes"])
        assert image.shape == (3, 64, 64) and image.dtype == torch.uint8


def test_shapes_do_not_overlap_and_all_kinds_occur() -> None:
    targets = [target for _, target in drawn(60)]
    assert all(int(target["masks"].sum(0).max()) == 1 for target in targets)
    assert {len(target["labels"]) for target in targets} == {1, 2, 3}
    assert set(torch.cat([t["labels"] for t in targets]).tolist()) == {1, 2, 3}


def test_the_seed_decides() -> None:
    first, again, other = drawn(2), drawn(2), drawn(2, seed=1)
    assert torch.equal(first[1][0], again[1][0])
    assert not torch.equal(first[1][0], other[1][0])
