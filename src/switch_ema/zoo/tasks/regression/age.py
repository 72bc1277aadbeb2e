"""Age regression on AgeDB and IMDB-WIKI: the paper's Table 10."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from switch_ema._checks import check_choice, check_count
from switch_ema.bench.loaders import CPU, WHOLE, Batches, BatchPart
from switch_ema.bench.task import Loader, Recipe
from switch_ema.zoo.data import sources
from switch_ema.zoo.data.faces import load_faces
from switch_ema.zoo.data.sample_loader import (
    EpochOrder,
    SampleLoader,
    count_workers,
    wanted_workers,
)
from switch_ema.zoo.data.splits import choose_split, stream
from switch_ema.zoo.data.vision import ImageFiles, VisionSet
from switch_ema.zoo.decays import DECAYS
from switch_ema.zoo.procedures import UNCHANGED
from switch_ema.zoo.procedures.finishing import Finishing
from switch_ema.zoo.tasks.image_batches import EvaluationImages
from switch_ema.zoo.tasks.regression.scalar import (
    SCHEDULE,
    ScalarRegression,
    error_metrics,
    for_network,
)

DATASETS = ("agedb", "imdb-wiki")
Box = tuple[int, int, int, int]
"""Left, top, right and bottom, in pixels."""
_LEAST, _ATTEMPTS = 0.5, 10
"""Smallest share of the area in a crop; attempts to fit one into an image."""
_TESTED = 0.875
"""Share of the height and width that tests see: 224 of 256 pixels."""
_HALF = torch.tensor(127.5).view(1, 1, 1)
"""Mean and deviation that scale bytes to values from -1 to 1."""
_BICUBIC = 3
"""Pillow's number of the interpolation."""
SMALL = Recipe(
    # 62 steps per epoch: a switch keeps two thirds of an epoch's progress.
    epochs=10,
    schedule="cosine",
    methods={"ema": {"decay": 0.95}, "switch-ema": {"decay": 0.95}},
    revision=2,  # crops
)
PAPER = Recipe(
    epochs=400,
    schedule=SCHEDULE,
    methods=DECAYS["agedb", "regression"].options(),
    revision=2,  # crops
)


class Age(ScalarRegression):
    """Age regression on faces: AgeDB or IMDB-WIKI, from a folder with a CSV file.

    The CSV has the columns age, path (relative to its folder) and split, as written by
    the usual preprocessing. Training crops half of an image's area or more and flips
    half of the crops; tests use the centre.

    Args:
        seed: Random seed.
        split: Evaluate on ``test`` images or on a held-out fifth of the training images
            (``validation``).
        dataset: ``agedb`` or ``imdb-wiki``.
        folder: Folder with the CSV, if the data is not in the data folder.
        network: ``resnet18``, ``resnet50`` or ``convnext-t``.
        scale: ``paper`` for the full-size network on all images at 224 pixels;
            ``small`` for a small version on 4,000 images at 32.
        size: Training images, instead of the scale's.
        test_size: Test images, likewise.
        batch: Images per step; default: 256, or 64 at small scale.
        workers: Processes that read images; default: at the paper's scale one per core,
            up to 16.
    """

    metrics = error_metrics("years")
    augmentation = f"crops of {_LEAST:g} to 1 of the area, flips"
    """In words, for those who compare recipes."""

    @classmethod
    def recipe_for(cls, options: Mapping[str, Any]) -> Recipe:
        """Return the recipe of the scale."""
        return for_network(PAPER if options.get("scale") == "paper" else SMALL, options)

    @classmethod
    def reading_processes(cls, options: Mapping[str, Any]) -> int:
        """Return how many processes read the images."""
        large = options.get("scale") == "paper"
        return wanted_workers(options.get("workers"), large=large)

    def __init__(
        self,
        seed: int,
        *,
        split: str = "test",
        dataset: str = "agedb",
        folder: str | None = None,
        network: str = "resnet50",
        scale: str = "small",
        size: int | None = None,
        test_size: int | None = None,
        batch: int | None = None,
        workers: int | None = None,
    ) -> None:
        super().__init__(seed)
        self.choose_network(network, scale, 224 if scale == "paper" else 32)
        usual = 256 if scale == "paper" else 64
        self.batch = check_count("batch", usual if batch is None else batch)
        self.workers = count_workers(workers, large=scale == "paper")
        faces = load_faces(check_choice("dataset", dataset, DATASETS), folder)
        limits = (None, None) if scale == "paper" else (4000, 1000)
        train, test = (
            _stream_order(len(y), given or most, seed, part)
            for y, given, most, part in (
                (faces.y_train, size, limits[0], "training faces"),
                (faces.y_test, test_size, limits[1], "test faces"),
            )
        )
        (self.x, self.y), (self.x_eval, self.y_eval) = choose_split(
            split,
            seed,
            (faces.x_train[train], faces.y_train[train]),
            (faces.x_test[test], faces.y_test[test]),
        )

    def train_loader(self, epoch: int) -> Loader:
        """Shuffle, crop and flip the images."""
        return _FaceBatches(self, epoch)

    @cached_property
    def training_faces(self) -> SampleLoader:
        """Reads and crops the training images."""
        faces = _CroppedFaces(self.x, self.y, self.side)
        return SampleLoader(faces, workers=self.workers, broken=self.broken)

    @cached_property
    def finish(self) -> Finishing:
        """Scales bytes to values from -1 to 1."""
        return Finishing(UNCHANGED, mean=_HALF, deviation=_HALF, classes=1, seed=0)

    def evaluation_batches(self) -> EvaluationImages:
        """Read the centres of the evaluation images."""
        return EvaluationImages(
            VisionSet(
                *(self.x, self.y, self.x_eval, self.y_eval, 1, _HALF, _HALF),
                mirrored=True,
            ),
            replace(UNCHANGED, test_crop=_TESTED),
            resolution=self.side,
            batch=100 * self.shard.ranks,
            workers=self.workers,
            broken=self.broken,
        )


class _FaceBatches(Batches):
    """Batches of image files: shuffled, cropped at random, half of them flipped.

    An incomplete last batch is dropped. Values are from -1 to 1.
    """

    def __init__(self, task: Age, epoch: int) -> None:
        super().__init__((task.y,), task.batch, task.seed, epoch=epoch, drop_last=True)
        self._task, self._purpose = task, f"faces of epoch {epoch}"

    def batches(
        self, *, start: int = 0, part: BatchPart = WHOLE, device: torch.device = CPU
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield images and ages."""
        generator = stream(self._task.seed, self._purpose)
        seeds = torch.randint(2**31, self.order.shape, generator=generator)
        order = EpochOrder(self.order, seeds, self.size)
        for chunks in self._task.training_faces.chunks(
            order, start=start, part=part, pinned=device.type == "cuda"
        ):
            yield self._task.finish(chunks, seed=0, device=device)


class _CroppedFaces:
    """Faces cropped at random, as bytes, with their ages."""

    def __init__(self, images: ImageFiles, ages: Tensor, side: int) -> None:
        self._images, self._ages, self._side = images, ages, side

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image = self._images.open(index)
        width, height = image.size
        box = crop_box(width, height, torch.rand(_ATTEMPTS + 1, 2).tolist())
        cropped = image.resize((self._side, self._side), resample=_BICUBIC, box=box)
        functional = sources.need("torchvision.transforms.functional")
        pixels: Tensor = functional.pil_to_tensor(cropped)
        pixels = pixels.flip(2) if torch.rand(()) < 0.5 else pixels
        return pixels, self._ages[index]


def crop_box(width: int, height: int, draws: Sequence[Sequence[float]]) -> Box:
    """Choose a crop of half of an image's area or more, from 3:4 to 4:3.

    Args:
        width: The image's, in pixels.
        height: Likewise.
        draws: Pairs of numbers in [0, 1): area and shape of the crop, one pair for each
            attempt to fit one into the image, and at the end its position.

    >>> crop_box(100, 100, [(1.0, 0.5), (0.0, 0.0)])
    (0, 0, 100, 100)
    """
    *shapes, (x, y) = draws
    for area, shape in shapes:
        area = (_LEAST + (1 - _LEAST) * area) * width * height
        ratio = math.exp((2 * shape - 1) * math.log(4 / 3))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, top = int(x * (width - w + 1)), int(y * (height - h + 1))
            return left, top, left + w, top + h
    return 0, 0, width, height


def _stream_order(count: int, most: int | None, seed: int, purpose: str) -> Tensor:
    """Draw at most ``most`` of ``count`` examples; None shuffles all of them."""
    return torch.randperm(count, generator=stream(seed, purpose))[:most]
