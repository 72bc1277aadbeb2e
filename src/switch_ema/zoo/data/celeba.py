"""CelebA's aligned faces, cropped and scaled to 64 by 64 pixels."""

from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from switch_ema.bench.errors import UsageError
from switch_ema.zoo.data import sources
from switch_ema.zoo.data.downloads import find_or_download
from switch_ema.zoo.data.text_files import read_text

PARTITION = "list_eval_partition.txt"
"""The published file of the parts: lines of a file name and 0, 1 or 2."""
_TRAINING, _TEST = "0", "2"
_CROP = (15, 40, 163, 188)
"""Left, top, right and bottom of the face crop in a 178 by 218 image."""
SIDE = 64


def load_celeba(*, download: bool = False) -> tuple[Tensor, Tensor]:
    """Return the training and the test faces as bytes (count, 3, 64, 64).

    Reads the published folder img_align_celeba and the file of its parts, beside it or
    in it; all faces take 2.2 GB of memory.
    """
    (folder,) = find_or_download("celeba", download=download)
    parts = _read_partition(folder)
    return _read(parts[_TRAINING]), _read(parts[_TEST])


def _read_partition(folder: Path) -> dict[str, tuple[Path, ...]]:
    """Return the files of each part that are there, in the order of the list."""
    places = (folder.parent / PARTITION, folder / PARTITION)
    listing = next((path for path in places if path.is_file()), None)
    if listing is None:
        raise UsageError(f"{folder.parent} must contain {PARTITION}, which is missing.")
    there = {path.name for path in folder.glob("*.jpg")}
    parts: dict[str, list[Path]] = {part: [] for part in "012"}
    for number, line in enumerate(read_text(listing).splitlines(), start=1):
        name, _, part = line.strip().partition(" ")
        if part.strip() not in parts:
            raise UsageError(
                f"{listing}, line {number}: a file name and its part (0, 1 or 2) are "
                f"expected, got {line!r}."
            )
        if name in there:
            parts[part.strip()].append(folder / name)
    for part, what in ((_TRAINING, "training"), (_TEST, "tests")):
        if not parts[part]:
            raise UsageError(f"{folder} has none of the faces for {what}.")
    return {part: tuple(paths) for part, paths in parts.items()}


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
