"""CelebA's aligned faces, cropped and scaled to 64 by 64 pixels."""

from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from switch_ema.bench.errors import UsageError
from switch_ema.zoo.data import sources

TRAINING, VALIDATION = 162_770, 19_867
"""Sizes of the training, validation and test parts, in order of file name."""
_CROP = (15, 40, 163, 188)
"""Left, top, right and bottom of the face crop in a 178 by 218 image."""
SIDE = 64


def load_celeba() -> tuple[Tensor, Tensor]:
    """Return the training and the test faces as bytes (count, 3, 64, 64).

    Reads the published folder img_align_celeba; takes about 2.2 GB of memory.
    """
    files = sources.find_files("celeba")
    if files is None:
        raise sources.not_found("celeba")
    paths = tuple(sorted(files[0].glob("*.jpg")))
    first_test = TRAINING + VALIDATION
    if len(paths) <= first_test:
        raise UsageError(
            f"{files[0]} must contain more than {first_test:,} *.jpg files, as CelebA "
            f"does, got {len(paths):,}."
        )
    return _read(paths[:TRAINING]), _read(paths[first_test:])


@lru_cache(maxsize=2)
def _read(paths: tuple[Path, ...]) -> Tensor:
    pictures = sources.need("PIL.Image")
    functional = sources.need("torchvision.transforms.v2.functional")
    faces = torch.empty(len(paths), 3, SIDE, SIDE, dtype=torch.uint8)
    for face, path in zip(faces, paths, strict=True):
        with pictures.open(path) as picture:
            small = picture.convert("RGB").crop(_CROP).resize((SIDE, SIDE))
            face.copy_(functional.pil_to_tensor(small))
    return faces
