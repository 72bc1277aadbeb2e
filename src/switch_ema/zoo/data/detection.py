"""Images with boxes and masks: the example type and the datasets."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from switch_ema._checks import check_count
from switch_ema.bench.errors import UsageError
from switch_ema.zoo.data import sources
from switch_ema.zoo.data.coco import CocoImages, open_folder
from switch_ema.zoo.data.shapes import CATEGORIES, draw_shapes
from switch_ema.zoo.data.splits import hold_out, stream

Target = dict[str, Tensor]
"""``boxes`` (n, 4) as x1, y1, x2, y2 in pixels, ``labels`` (n) from 1, ``iscrowd`` (n)
and, where the data has them, ``masks`` (n, height, width) of zeros and ones."""


class Example(NamedTuple):
    """An image as bytes (3, height, width) and its target."""

    image: Tensor
    target: Target


class Examples(Protocol):
    """Examples by index, in memory or read from files."""

    def __len__(self) -> int:
        """Count the examples."""

    def __getitem__(self, index: int) -> tuple[Tensor, Target]:
        """Return one example."""


@dataclass(frozen=True)
class _Subset:
    """Examples at the given indices, in that order."""

    examples: Examples
    indices: Sequence[int]

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> tuple[Tensor, Target]:
        return self.examples[self.indices[index]]


class _Scaled:
    """Images scaled to a longer side of ``longest_side`` pixels.

    Images are scaled once and kept in memory; masks would not fit, so they are decoded
    and scaled on access.
    """

    def __init__(
        self, examples: CocoImages, indices: Sequence[int], longest_side: int
    ) -> None:
        self._examples, self._indices = examples, indices
        self._resize = sources.need("torchvision.transforms.v2.functional")
        self._images, self._sizes = [], []
        for index in indices:
            image = examples.image(index)
            height, width = image.shape[-2:]
            factor = longest_side / max(height, width)
            size = [round(height * factor), round(width * factor)]
            self._sizes.append((height, width))
            self._images.append(self._resize.resize_image(image, size, antialias=True))

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, index: int) -> tuple[Tensor, Target]:
        image, (height, width) = self._images[index], self._sizes[index]
        size = list(image.shape[-2:])
        target = self._examples.target(self._indices[index])
        scale = torch.tensor([size[1] / width, size[0] / height] * 2)
        target["boxes"] = target["boxes"] * scale
        if "masks" in target:
            target["masks"] = self._resize.resize_mask(target["masks"], size)
            seen = target["masks"].flatten(1).bool().any(1)  # a small mask may vanish
            target = {key: value[seen] for key, value in target.items()}
        return image, target


@dataclass(frozen=True)
class DetectionData:
    """Training and test examples."""

    train: Examples
    test: Examples
    categories: tuple[str, ...]
    """Names; label 1 is the first (0 is the background)."""
    has_masks: bool
    problems: tuple[str, ...] = ()
    """One sentence for each kind of entry that was skipped in the files."""

    @property
    def classes(self) -> int:
        """Number of categories, without the background."""
        return len(self.categories)


SHAPES_TRAIN, SHAPES_TEST = 320, 100
_KNOWN = ("bccd", "nuclei", "coco")
"""Datasets found in the user's data folder."""


def load_detection(
    name: str,
    seed: int,
    *,
    size: int | None = None,
    test_size: int | None = None,
    longest_side: int | None = None,
    validation: bool = False,
    masks: bool = True,
) -> DetectionData:
    """Load images with boxes by name or from a folder in COCO format.

    Args:
        name: ``shapes`` (synthetic), ``bccd``, ``nuclei`` and ``coco`` (in the user's
            data folder), or the path of a folder; see
            ``switch_ema.zoo.data.coco``.
        seed: Seeds the shapes, the subsets and the held-out part.
        size: Number of training images; None for all (320 shapes).
        test_size: Number of test images; None for all (100 shapes).
        longest_side: Images from files are scaled to it once and kept in memory; None
            reads them from their files at full size.
        validation: Whether to evaluate on a held-out fifth of the training images
            instead of the test images.
        masks: Whether masks are used; otherwise those in files are not decoded.
    """
    if name == "shapes":
        count = check_count("size", SHAPES_TRAIN if size is None else size, 5)
        tests = SHAPES_TEST if test_size is None else test_size
        tests = check_count("test_size", tests)
        drawn = draw_shapes(count + tests, stream(seed, "shapes"))
        examples = [Example(*example) for example in drawn]
        train: Examples = examples[:count]
        data = DetectionData(train, examples[count:], CATEGORIES, has_masks=True)
    else:
        # Scaling drops objects whose masks vanish, so it needs the masks.
        decodes = masks or longest_side is not None
        data = _from_files(_folder(name), longest_side, decodes)
        generator = stream(seed, "subset")
        data = DetectionData(
            _draw("size", data.train, size, generator),
            _draw("test_size", data.test, test_size, generator),
            data.categories,
            data.has_masks,
            data.problems,
        )
    if not validation:
        return data
    stay, held = (part.tolist() for part in hold_out(len(data.train), seed))
    return DetectionData(
        _Subset(data.train, stay),
        _Subset(data.train, held),
        data.categories,
        data.has_masks,
        data.problems,
    )


def _folder(name: str) -> Path:
    if name not in _KNOWN:
        return Path(name).expanduser()
    files = sources.find_files(name)
    if files is None:
        raise sources.not_found(name)
    above = files[0].parent
    return above.parent if above.name == "annotations" else above


@lru_cache(maxsize=2)
def _from_files(folder: Path, longest_side: int | None, masks: bool) -> DetectionData:
    train, test = open_folder(folder, masks=masks)
    if train.categories != test.categories:
        raise UsageError(
            f"{folder}: the categories for training are "
            f"{', '.join(train.categories)}, those for tests "
            f"{', '.join(test.categories)}."
        )
    # As usual, images without boxes are tested on but not trained on.
    filled = [index for index in range(len(train)) if train.count(index)]
    parts: list[Examples] = [_Subset(train, filled), test]
    for part, what in zip(parts, ("training", "tests"), strict=True):
        if not len(part):
            raise UsageError(f"{folder} has no usable images for {what}.")
    if longest_side is not None:
        parts = [
            _Scaled(train, filled, longest_side),
            _Scaled(test, range(len(test)), longest_side),
        ]
    has_masks = train.has_masks and test.has_masks
    problems = (*train.problems, *test.problems)
    return DetectionData(parts[0], parts[1], train.categories, has_masks, problems)


def _draw(
    name: str, examples: Examples, size: int | None, generator: torch.Generator
) -> Examples:
    have = len(examples)
    if size is None:
        return examples
    if check_count(name, size) > have:
        raise UsageError(f"{name} must be at most {have}, got {size}.")
    order = torch.randperm(have, generator=generator)[:size]
    return _Subset(examples, order.tolist())
