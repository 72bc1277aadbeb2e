"""Augmentation of images together with their boxes and masks.

Draws from torch's global generator; the code that makes batches seeds it.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from switch_ema.zoo.data.detection import Examples, Target
from switch_ema.zoo.data.sources import need

Transform = Callable[[Tensor, Target], tuple[Tensor, Target]]
GREY = 114
"""Grey value outside the image, 0 to 255."""
_SHIFT = 0.1
"""Largest shift of a mosaic, as a share of the result's side."""


class BoxAugmentation:
    """Applies torchvision transforms to images with boxes and masks.

    Boxes that end up outside the image are dropped, with their labels and masks.

    Args:
        transforms: From ``torchvision.transforms.v2``.
        smallest: Boxes with a shorter side are dropped.
    """

    def __init__(self, *transforms: Any, smallest: float = 1.0) -> None:
        v2 = need("torchvision.transforms.v2")
        clean = v2.SanitizeBoundingBoxes(min_size=smallest, labels_getter=_others)
        self._transform = v2.Compose([*transforms, clean])

    def __call__(self, image: Tensor, target: Target) -> tuple[Tensor, Target]:
        """Transform one example."""
        kinds = need("torchvision.tv_tensors")
        wrapped = dict(target)
        wrapped["boxes"] = kinds.BoundingBoxes(
            target["boxes"], format="XYXY", canvas_size=tuple(image.shape[-2:])
        )
        if "masks" in target:
            wrapped["masks"] = kinds.Mask(target["masks"])
        changed, found = self._transform(kinds.Image(image), wrapped)
        plain = {key: value.as_subclass(Tensor) for key, value in found.items()}
        return changed.as_subclass(Tensor), plain


def flipping(crop: int | None = None) -> BoxAugmentation:
    """Flip half of the images; also crop squares if ``crop`` is given."""
    v2 = need("torchvision.transforms.v2")
    crops = [v2.RandomCrop(crop, pad_if_needed=True)] if crop else []
    return BoxAugmentation(*crops, v2.RandomHorizontalFlip())


class MosaicMixUp:
    """YOLOX's augmentation: Mosaic (four images in one), then MixUp.

    Mosaic puts four images around a random point of a canvas of twice the side,
    rotates, shears and scales it, shifts it by up to a tenth of the side, and keeps the
    centre. MixUp blends in another image, scaled by 0.5 to 1.5 and mirrored half of the
    time, at half brightness each, and keeps the boxes of both.

    Args:
        examples: All training examples; partners are drawn from them.
        side: Side of the result in pixels.
        scale: Range of the mosaic's scale factor.
        mosaic: Probability of Mosaic; other images are only flipped and recoloured.
        mixup: Probability of MixUp, given Mosaic.
    """

    def __init__(
        self,
        examples: Examples,
        side: int,
        *,
        scale: tuple[float, float] = (0.1, 2.0),
        mosaic: float = 1.0,
        mixup: float = 1.0,
    ) -> None:
        v2 = need("torchvision.transforms.v2")
        self._examples, self._side = examples, side
        self._mosaic, self._mixup = mosaic, mixup
        self._affine = BoxAugmentation(
            v2.RandomAffine(
                degrees=10,
                translate=(_SHIFT / 2, _SHIFT / 2),  # shares of the canvas
                scale=scale,
                shear=2,
                fill=GREY,
            ),
            v2.CenterCrop(side),
            smallest=2.0,
        )
        self._mirror = BoxAugmentation(v2.RandomHorizontalFlip())
        self._last = BoxAugmentation(
            v2.ColorJitter(brightness=0.4, saturation=0.7, hue=0.015),
            v2.RandomHorizontalFlip(),
        )

    def __len__(self) -> int:
        return len(self._examples)

    def __getitem__(self, index: int) -> tuple[Tensor, Target]:
        image, target = self._examples[index]
        if torch.rand(()) < self._mosaic:
            image, target = self._affine(*self._four(index))
            if torch.rand(()) < self._mixup and len(target["labels"]):
                image, target = self._mixed(image, target)
        return self._last(image, target)

    def _four(self, index: int) -> tuple[Tensor, Target]:
        side = self._side
        canvas = torch.full((3, 2 * side, 2 * side), GREY, dtype=torch.uint8)
        middle = torch.randint(side // 2, side + side // 2, (2,)).tolist()
        others = torch.randint(len(self._examples), (3,)).tolist()
        targets = []
        for quadrant, chosen in enumerate((index, *others)):
            image, target = fitted(*self._examples[chosen], side)
            height, width = image.shape[-2:]
            left = middle[0] - (width if quadrant % 2 == 0 else 0)
            top = middle[1] - (height if quadrant < 2 else 0)
            targets.append(_pasted(canvas, image, target, left, top))
        return canvas, _joined(targets)

    def _mixed(self, image: Tensor, target: Target) -> tuple[Tensor, Target]:
        other = int(torch.randint(len(self._examples), ()))
        factor = float(torch.empty(()).uniform_(0.5, 1.5))
        added, boxes = fitted(*self._examples[other], round(self._side * factor))
        added, boxes = self._mirror(added, boxes)
        canvas = torch.full_like(image, GREY)
        room = [self._side - size for size in (added.shape[-1], added.shape[-2])]
        # A small image goes anywhere inside; a large one is cropped at random.
        left, top = (int(torch.randint(min(r, 0), max(r, 0) + 1, ())) for r in room)
        boxes = _pasted(canvas, added, boxes, left, top)
        mixed = (image.float() + canvas.float()) / 2
        return mixed.to(torch.uint8), _joined([target, boxes])


def fitted(image: Tensor, target: Target, side: int) -> tuple[Tensor, Target]:
    """Scale an image to a longer side of ``side`` pixels; masks are dropped."""
    resize = need("torchvision.transforms.v2.functional").resize_image
    height, width = image.shape[-2:]
    factor = side / max(height, width)
    size = [max(round(height * factor), 1), max(round(width * factor), 1)]
    scaled = image if factor == 1 else resize(image, size, antialias=True)
    kept = {key: value for key, value in target.items() if key != "masks"}
    return scaled, {**kept, "boxes": target["boxes"] * factor}


def _pasted(
    canvas: Tensor, image: Tensor, target: Target, left: int, top: int
) -> Target:
    """Paste the part of an image that fits onto a canvas; shift and clip its boxes."""
    height, width = canvas.shape[-2:]
    x1, y1 = max(left, 0), max(top, 0)
    x2, y2 = min(left + image.shape[-1], width), min(top + image.shape[-2], height)
    canvas[:, y1:y2, x1:x2] = image[:, y1 - top : y2 - top, x1 - left : x2 - left]
    boxes = target["boxes"] + torch.tensor([left, top, left, top])
    low = torch.tensor([x1, y1, x1, y1])
    boxes = boxes.clamp(low, torch.tensor([x2, y2, x2, y2]))
    keep = ((boxes[:, 2:] - boxes[:, :2]) > 1).all(1)
    return {key: value[keep] for key, value in {**target, "boxes": boxes}.items()}


def _joined(targets: list[Target]) -> Target:
    return {key: torch.cat([target[key] for target in targets]) for key in targets[0]}


def _others(inputs: tuple[Tensor, Target]) -> list[Tensor]:
    """Return the keys of the target that have one entry per box."""
    return [value for key, value in inputs[1].items() if key not in ("boxes", "masks")]
