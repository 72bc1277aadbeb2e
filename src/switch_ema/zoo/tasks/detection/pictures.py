"""Pictures of ground truth and detections."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import interpolate, pad

from switch_ema.zoo.data.detection import Target
from switch_ema.zoo.data.sources import need

_NAMED = {
    "red": "#ff3030",
    "green": "#30d030",
    "blue": "#4080ff",
    "yellow": "#ffc000",
    "pink": "#ff40ff",
    "turquoise": "#00e0e0",
}
COLOURS = tuple(_NAMED.values())
_SMALLEST = 256
"""Smaller images are enlarged to this side to keep lines and names legible."""


def draw(
    image: Tensor, target: Target, categories: Sequence[str], least: float = 0.0
) -> Tensor:
    """Draw boxes and any masks, in one colour per category.

    Args:
        image: Bytes (3, height, width).
        target: Ground truth or detections.
        categories: Names of the categories.
        least: Minimum score of the detections drawn.

    Returns:
        The picture in [0, 1]; small images are enlarged by a whole factor.
    """
    utils = need("torchvision.utils")
    if "scores" in target:
        sure = target["scores"] >= least
        target = {key: value[sure] for key, value in target.items()}
    factor = max(_SMALLEST // max(image.shape[-2:]), 1)
    picture = _enlarged(image, factor)
    labels = [int(label) - 1 for label in target["labels"]]
    if labels:
        colours = [COLOURS[label % len(COLOURS)] for label in labels]
        if "masks" in target:
            masks = _enlarged(target["masks"].to(torch.uint8), factor).bool()
            # One call per category: torchvision blackens overlapping masks.
            for label in set(labels):
                chosen = torch.tensor([label == other for other in labels])
                picture = utils.draw_segmentation_masks(
                    picture,
                    masks[chosen].any(0),
                    alpha=0.45,
                    colors=COLOURS[label % len(COLOURS)],
                )
        boxes = target["boxes"] * factor
        # Names would hide many boxes; the colours must do there.
        few = len(labels) <= 4
        names = [categories[label] for label in labels] if few else None
        picture = utils.draw_bounding_boxes(
            picture,
            boxes,
            names,
            colors=colours,
            width=2,
            fill_labels=few,
            label_colors="black" if few else None,
        )
    return picture / 255


def legend(categories: Sequence[str]) -> str:
    """Return a colour legend; empty where it would not help.

    >>> legend(["RBC", "WBC"])
    ' (RBC red, WBC green)'
    """
    if not 1 < len(categories) <= len(_NAMED):
        return ""
    pairs = zip(categories, _NAMED, strict=False)
    return f" ({', '.join(' '.join(pair) for pair in pairs)})"


def side_by_side(pictures: Iterable[Tensor]) -> Tensor:
    """Stack pictures, padded with white to the largest size."""
    pictures = list(pictures)
    height, width = (max(p.shape[axis] for p in pictures) for axis in (-2, -1))
    return torch.stack(
        [
            pad(p, (0, width - p.shape[-1], 0, height - p.shape[-2]), value=1.0)
            for p in pictures
        ]
    )


def _enlarged(pixels: Tensor, factor: int) -> Tensor:
    if factor == 1:
        return pixels
    return interpolate(pixels[None], scale_factor=factor, mode="nearest")[0]
