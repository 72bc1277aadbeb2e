"""Moving MNIST: two digits move across a black frame and bounce off its edges."""

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, interpolate

from switch_ema._checks import check_count
from switch_ema.bench.errors import UsageError
from switch_ema.zoo.data import sources
from switch_ema.zoo.data.images import load_images
from switch_ema.zoo.data.splits import stream

SOURCES = ("digits", "mnist")
FRAMES = 20
"""Frames per clip: ten given and ten to predict."""
_DRAWN = 500
"""Clips drawn at a time."""
STEP = 0.1
"""Distance that a digit moves per frame, as a share of the room it has."""


def digit_images(
    name: str, side: int, seed: int, *, download: bool = False
) -> tuple[Tensor, Tensor]:
    """Return training and test digits in [0, 1], sized for frames of ``side`` pixels.

    An MNIST digit has 28 pixels in a frame of 64, and in proportion in other frames.
    scikit-learn's 8 by 8 digits are scaled up to the same size.
    """
    data = load_images(name, seed, download=download)
    digit = round(side * 28 / 64)
    train, test = (_resized(images, digit) for images in (data.x_train, data.x_test))
    return train, test


def _resized(images: Tensor, side: int) -> Tensor:
    pixels = images.float() / 255
    if side > images.shape[-1]:
        size = (side, side)
        pixels = interpolate(pixels, size, mode="bilinear", align_corners=False)
    elif side < images.shape[-1]:
        pixels = adaptive_avg_pool2d(pixels, side)
    return pixels[:, 0]


def moving_clips(digits: Tensor, count: int, side: int, seed: int, name: str) -> Tensor:
    """Generate clips of two moving digits (Srivastava et al., 2015).

    A digit starts at a random position, moves by ``STEP`` per frame in a random
    direction, and bounces off the edges. Where digits overlap, the brighter pixel wins.

    Args:
        digits: Digits to choose from, count x height x width.
        count: Number of clips.
        side: Height and width of a frame.
        seed: Random seed, combined with ``name``.
        name: Purpose of the clips, such as "training clips".

    Returns:
        Bytes, count x frames x 1 x side x side.
    """
    check_count("count", count)
    generator = stream(seed, name)
    chosen = torch.randint(len(digits), (count, 2), generator=generator)
    places = _trajectories(2 * count, generator).view(count, 2, FRAMES, 2)
    corners = (places * (side - digits.shape[-1])).long()
    clips = torch.empty(count, FRAMES, side, side, dtype=torch.uint8)
    # In parts, since drawing takes about ten times the memory of the bytes.
    parts = (torch.split(values, _DRAWN) for values in (clips, chosen, corners))
    for part, which, where in zip(*parts, strict=True):
        part.copy_((_drawn(digits[which], where, side) * 255).round())
    return clips.unsqueeze(2)


def _drawn(digits: Tensor, corners: Tensor, side: int) -> Tensor:
    """Draw two digits per clip at their upper left corners in every frame."""
    count = len(digits)
    clips = torch.zeros(count, FRAMES, side, side)
    rows = torch.arange(digits.shape[-1])
    clip, frame = torch.arange(count)[:, None], torch.arange(FRAMES)[None, :]
    for which in range(2):
        # One advanced index covers all pixels of a digit in all clips and frames.
        down = corners[:, which, :, 0, None, None] + rows[:, None]
        right = corners[:, which, :, 1, None, None] + rows
        index = (clip[..., None, None], frame[..., None, None], down, right)
        clips[index] = torch.maximum(clips[index], digits[:, which, None])
    return clips


def published_clips() -> Tensor:
    """Return the published test clips: bytes, clips x frames x 1 x 64 x 64.

    They stay in their file (mnist_test_seq.npy, 819 MB) and are read on access.
    """
    files = sources.find_files("moving_mnist")
    if files is None:
        raise sources.not_found("moving_mnist")
    (path,) = files
    try:
        stored = np.load(path, mmap_mode="c", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {error}.") from None
    if stored.ndim != 4 or len(stored) != FRAMES or stored.dtype != np.uint8:
        raise UsageError(
            f"{path} must hold bytes of the shape {FRAMES} (frames) x clips x height x "
            f"width, got {stored.dtype} of the shape {stored.shape}."
        )
    return torch.from_numpy(stored).transpose(0, 1).unsqueeze(2)


def _trajectories(count: int, generator: torch.Generator) -> Tensor:
    """Return positions in [0, 1] x [0, 1], count x frames x 2."""
    place = torch.rand(count, 2, generator=generator)
    angle = 2 * math.pi * torch.rand(count, generator=generator)
    velocity = STEP * torch.stack([angle.sin(), angle.cos()], 1)
    places = []
    for _ in range(FRAMES):
        place = place + velocity
        velocity = torch.where((place <= 0) | (place >= 1), -velocity, velocity)
        place = place.clamp(0, 1)
        places.append(place)
    return torch.stack(places, 1)
