"""The last steps of augmentation, on a batch and on its device.

Bytes become normalised numbers, rectangles are erased, and images are blended by Mixup
or CutMix. All random choices are made on the CPU, from the seeds of examples and
batches, so the result is the same on every device.
"""

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from switch_ema.zoo.data import sources
from switch_ema.zoo.data.splits import stream
from switch_ema.zoo.procedures.procedure import Augmentation

_NOISE = 2**20
"""Values of noise that erased rectangles are filled from, each from a random one on."""
_CACHED = 2**18
"""Values of a batch to compute at once on the CPU."""
_SMALL = 2**18
"""Values of a batch whose memory is not worth keeping."""
_ERASED = {"scale": (0.02, 1 / 3), "ratio": (0.3, 1 / 0.3)}
"""Area and aspect ratio of erased rectangles, as in timm."""


class Finishing:
    """Normalises, erases and blends the batches of a training.

    Args:
        augmentation: Says what to erase and to blend.
        mean: Mean of the bytes, by channel.
        deviation: Standard deviation of the bytes, by channel.
        classes: Number of classes.
        seed: Seeds the noise in erased rectangles.
    """

    def __init__(
        self,
        augmentation: Augmentation,
        *,
        mean: Tensor,
        deviation: Tensor,
        classes: int,
        seed: int,
    ) -> None:
        self._augmentation, self._classes = augmentation, classes
        self._mean, self._deviation = mean, deviation
        self._memory = _ReusedMemory()
        self._noise = torch.empty(0)
        if augmentation.erasing:
            generator = stream(seed, "noise of erasing")
            self._noise = torch.randn(2 * _NOISE, generator=generator)

    def __call__(
        self, chunks: Sequence[Sequence[Tensor]], *, seed: int, device: torch.device
    ) -> tuple[Tensor, Tensor]:
        """Finish a batch.

        Args:
            chunks: Parts of the batch: bytes, labels and, to erase, rectangles as
                ``draw_rectangle`` returns them.
            seed: Seeds the blending.
            device: Device of the result.
        """
        images = self.normalise([chunk[0] for chunk in chunks], device)
        labels = torch.cat([chunk[1] for chunk in chunks])
        labels = labels.to(device, non_blocking=True)
        if self._augmentation.erasing:
            self._erase(images, torch.cat([chunk[2] for chunk in chunks]))
        if not self._augmentation.mixes:
            return images, labels
        blend = _draw_blend(self._augmentation, images.shape[-2:], seed)
        _blend(images, blend)
        soft = sources.need("timm.data.mixup").mixup_target(
            labels, self._classes, blend.share, smoothing=0.0
        )
        return images, soft

    def normalise(self, chunks: Sequence[Tensor], device: torch.device) -> Tensor:
        """Join the bytes of a batch on a device and normalise them there."""
        self._mean, self._deviation = (
            statistic.to(device) for statistic in (self._mean, self._deviation)
        )
        count, shape = sum(map(len, chunks)), chunks[0].shape[1:]
        images = self._memory.empty((count, *shape), device)
        places = torch.split(images, [len(chunk) for chunk in chunks])
        for chunk, place in zip(chunks, places, strict=True):
            moved = chunk.to(device, non_blocking=True)  # bytes, a quarter of floats
            for start, stop in _pieces(moved):
                piece = place[start:stop].copy_(moved[start:stop])
                piece.sub_(self._mean).div_(self._deviation)
        return images

    def _erase(self, images: Tensor, rectangles: Tensor) -> None:
        self._noise = self._noise.to(images.device)
        for index in rectangles[:, 2].nonzero().flatten().tolist():
            top, left, high, wide, first = rectangles[index].tolist()
            hole = images[index, :, top : top + high, left : left + wide]
            # Enough for a third of an image of 1023 by 1023 pixels.
            values = self._noise[first : first + hole.numel()]
            hole.copy_(values.view(hole.shape))


def draw_rectangle(augmentation: Augmentation, image: Tensor) -> Tensor:
    """Draw the rectangle to erase in an image: top, left, height, width, noise.

    ``noise`` is the position of the first value that fills it. Height 0 erases nothing.
    Draws from torch's global generator.
    """
    nothing = torch.zeros(5, dtype=torch.int64)
    if not torch.rand(()) < augmentation.erasing:
        return nothing
    v2 = sources.need("torchvision.transforms.v2")
    drawn = v2.RandomErasing(value=0.0, **_ERASED).make_params([image])
    if drawn["v"] is None:  # no rectangle fitted
        return nothing
    first = int(torch.randint(_NOISE, ()))
    return torch.tensor([*(drawn[key] for key in "ijhw"), first])


@dataclass(frozen=True)
class _Blend:
    """How the images of a batch are blended with those in reverse order."""

    share: float
    """Share of an image that stays."""
    box: tuple[int, int, int, int] | None
    """CutMix: top, bottom, left and right of what is replaced. None: Mixup."""


def _draw_blend(augmentation: Augmentation, size: Sequence[int], seed: int) -> _Blend:
    """Draw Mixup or CutMix for a batch, as timm draws them."""
    draws = np.random.RandomState(seed)
    draws.rand()  # timm's chance not to blend, which no procedure uses
    use_box = augmentation.cutmix > 0
    if augmentation.mixup > 0 and use_box:
        use_box = draws.rand() < 0.5
    alpha = augmentation.cutmix if use_box else augmentation.mixup
    share = float(draws.beta(alpha, alpha))
    if not use_box:
        return _Blend(share, None)
    height, width = size
    cut = float(np.sqrt(1 - share))
    lengths = int(height * cut), int(width * cut)
    middles = draws.randint(0, height), draws.randint(0, width)
    (top, bottom), (left, right) = (
        (max(middle - length // 2, 0), min(middle + (length + 1) // 2, side))
        for middle, length, side in zip(middles, lengths, size, strict=True)
    )
    area = (bottom - top) * (right - left)
    return _Blend(1 - area / (height * width), (top, bottom, left, right))


def _blend(images: Tensor, blend: _Blend) -> None:
    """_Blend each image with its mirror image in the batch, in place."""
    count = len(images)
    for start, stop in _pieces(images[: count // 2]):
        front, back = images[start:stop], images[count - stop : count - start]
        if blend.box is not None:
            top, bottom, left, right = blend.box
            front, back = (part[..., top:bottom, left:right] for part in (front, back))
            before = front.clone()
            front.copy_(_reversed(back))
            back.copy_(_reversed(before))
            continue
        added = _reversed(back) * (1 - blend.share)
        others = _reversed(front) * (1 - blend.share)
        front.mul_(blend.share).add_(added)
        back.mul_(blend.share).add_(others)


def _pieces(images: Tensor) -> Iterator[tuple[int, int]]:
    """Divide a batch on the CPU into pieces that fit into the processor's cache."""
    count = len(images)
    size = count
    if images.device.type == "cpu" and count:
        size = max(_CACHED // images[0].numel(), 1)
    for start in range(0, count, max(size, 1)):
        yield start, min(start + size, count)


def _reversed(images: Tensor) -> Tensor:
    return images if len(images) == 1 else images.flip(0)


class _ReusedMemory:
    """Memory for batches on the CPU, used again once nothing refers to a batch.

    Fresh memory costs more time than computing what is written to it. On GPUs torch
    does the same.
    """

    def __init__(self) -> None:
        self._blocks: list[Any] = []

    def empty(self, shape: tuple[int, ...], device: torch.device) -> Tensor:
        """Return an uninitialised float tensor."""
        size = math.prod(shape)
        if device.type != "cpu" or size < _SMALL:
            return torch.empty(shape, device=device)
        for block in self._blocks:
            if block.size == size and _is_free(sys.getrefcount(block)):
                return torch.from_numpy(block).view(shape)
        in_use = [b for b in self._blocks if not _is_free(sys.getrefcount(b))]
        block = _aligned(size)
        self._blocks = [*in_use, block]
        return torch.from_numpy(block).view(shape)


def _is_free(references: int) -> bool:
    """Whether only the list, a loop's variable and ``getrefcount`` know a block.

    Every tensor on it, a view or what a graph has saved as well, is one more.
    """
    return references == 3


def _aligned(size: int) -> "np.ndarray[Any, np.dtype[np.float32]]":
    """Allocate floats that begin at a cache line, as torch's own tensors do."""
    block = np.empty(size + 16, dtype=np.float32)
    first = -block.ctypes.data % 64 // 4
    return block[first : first + size]
