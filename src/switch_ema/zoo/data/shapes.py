"""Coloured circles, squares and triangles on noise, with their boxes and masks.

The smallest data on which a detector must localise, classify and segment. An image has
64 by 64 pixels and one to three shapes of 12 to 28 pixels, hardly overlapping; the
colour is independent of the class.
"""

import torch
from torch import Tensor

SIDE = 64
CATEGORIES = ("circle", "square", "triangle")
_SMALLEST, _LARGEST, _MOST = 12, 28, 3
_NOISE = 30.0
"""Standard deviation of the background, in 0 to 255."""


def draw_shapes(
    count: int, generator: torch.Generator
) -> list[tuple[Tensor, dict[str, Tensor]]]:
    """Generate images with their targets.

    Args:
        count: Number of images.
        generator: Source of all randomness.

    Returns:
        For each image its bytes (3, 64, 64), and ``boxes``, ``labels`` from 1,
        ``masks`` and ``iscrowd``, which is 0.
    """
    return [_draw_image(generator) for _ in range(count)]


def _draw_image(generator: torch.Generator) -> tuple[Tensor, dict[str, Tensor]]:
    base = 90 + 70 * torch.rand(3, 1, 1, generator=generator)
    image = base + _NOISE * torch.randn(3, SIDE, SIDE, generator=generator)
    masks: list[Tensor] = []
    labels: list[int] = []
    taken = torch.zeros(SIDE, SIDE, dtype=torch.bool)
    for _ in range(_integer(1, _MOST, generator)):
        kind = _integer(0, len(CATEGORIES) - 1, generator)
        mask = _mask(kind, generator)
        colour = 255 * torch.rand(3, 1, 1, generator=generator)
        # A shape that would hide another is skipped; the first always stays.
        if (mask & taken).any():
            continue
        # Far from the background, or the shape would be invisible.
        colour = torch.where((colour - base).abs() < 50, (colour + 128) % 256, colour)
        texture = _NOISE / 3 * torch.randn(3, SIDE, SIDE, generator=generator)
        image = torch.where(mask, colour + texture, image)
        taken |= mask
        masks.append(mask)
        labels.append(kind + 1)
    stacked = torch.stack(masks)
    target = {
        "boxes": _boxes(stacked),
        "labels": torch.tensor(labels),
        "masks": stacked.to(torch.uint8),
        "iscrowd": torch.zeros(len(labels), dtype=torch.int64),
    }
    return image.clamp(0, 255).to(torch.uint8), target


def _mask(kind: int, generator: torch.Generator) -> Tensor:
    size = _integer(_SMALLEST, _LARGEST, generator)
    left, top = (_integer(0, SIDE - size, generator) for _ in range(2))
    grid = torch.arange(SIDE) + 0.5
    x, y = (grid - left)[None, :] / size, (grid - top)[:, None] / size
    if kind == 0:
        return (x - 0.5) ** 2 + (y - 0.5) ** 2 <= 0.25
    if kind == 1:
        return (x >= 0) & (x <= 1) & (y >= 0) & (y <= 1)
    return (y >= 0) & (y <= 1) & (2 * (x - 0.5).abs() <= y)


def _boxes(masks: Tensor) -> Tensor:
    """Return the smallest box around each mask, to its pixels' outer edges."""
    columns, rows = masks.any(1).int(), masks.any(2).int()
    first = [filled.argmax(1) for filled in (columns, rows)]
    last = [SIDE - filled.flip(1).argmax(1) for filled in (columns, rows)]
    return torch.stack([*first, *last], 1).float()


def _integer(low: int, high: int, generator: torch.Generator) -> int:
    return int(torch.randint(low, high + 1, (), generator=generator))
