"""Age regression on AgeDB and IMDB-WIKI: the paper's Table 10."""

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from switch_ema._checks import check_choice, check_count
from switch_ema.bench.task import Loader, Recipe
from switch_ema.zoo.data import sources
from switch_ema.zoo.data.faces import load_faces
from switch_ema.zoo.data.splits import choose_split, stream
from switch_ema.zoo.data.vision import ImageFiles
from switch_ema.zoo.decays import DECAYS
from switch_ema.zoo.tasks.regression.scalar import (
    SCHEDULE,
    ScalarRegression,
    error_metrics,
    for_network,
)

DATASETS = ("agedb", "imdb-wiki")
SMALL = Recipe(
    # 62 steps per epoch: a switch keeps two thirds of an epoch's progress.
    epochs=10,
    schedule="cosine",
    methods={"ema": {"decay": 0.95}, "switch-ema": {"decay": 0.95}},
)
PAPER = Recipe(
    epochs=400,
    schedule=SCHEDULE,
    methods=DECAYS["agedb", "regression"].options(),
)


class Age(ScalarRegression):
    """Age regression on faces: AgeDB or IMDB-WIKI, from a folder with a CSV file.

    The CSV has the columns age, path (relative to its folder) and split, as written by
    the usual preprocessing. Images are scaled to one size; training shifts them and
    flips half of them.

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
        workers: Threads that read images.
    """

    metrics = error_metrics("years")

    @classmethod
    def recipe_for(cls, options: Mapping[str, Any]) -> Recipe:
        """Return the recipe of the scale."""
        return for_network(PAPER if options.get("scale") == "paper" else SMALL, options)

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
        workers: int = 2,
    ) -> None:
        super().__init__(seed)
        self.choose_network(network, scale, 224 if scale == "paper" else 32)
        usual = 256 if scale == "paper" else 64
        self.batch = check_count("batch", usual if batch is None else batch)
        self.workers = check_count("workers", workers)
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
        """Shuffle, shift and flip the images."""
        generator = stream(self.seed, f"faces of epoch {epoch}")
        return _FaceBatches(
            self.x, self.y, self.batch, self.side, generator, self.workers
        )

    def evaluation_batches(self) -> Iterable[Tensor]:
        """Read the evaluation images."""
        for begin in range(0, len(self.x_eval), 100):
            which = torch.arange(begin, min(begin + 100, len(self.x_eval)))
            yield _read_images(self.x_eval[which], self.side, self.workers)


class _FaceBatches:
    """Batches of image files: shuffled, shifted by up to 1/14, half of them flipped.

    An incomplete last batch is dropped.
    """

    def __init__(
        self,
        images: ImageFiles,
        ages: Tensor,
        batch: int,
        side: int,
        generator: torch.Generator,
        workers: int,
    ) -> None:
        self._images, self._ages = images, ages
        self._batch, self._side = min(batch, len(images)), side
        self._generator, self._workers = generator, workers

    def __len__(self) -> int:
        return len(self._images) // self._batch

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.randperm(len(self._images), generator=self._generator)
        for which in torch.split(order, self._batch)[: len(self)]:
            images = _read_images(self._images[which], self._side, self._workers)
            yield self._augmented(images), self._ages[which]

    def _augmented(self, images: Tensor) -> Tensor:
        most = max(self._side // 14, 1)
        padded = torch.nn.functional.pad(images, (most,) * 4)
        count, end = len(images), 2 * most + 1
        shifts = torch.randint(end, (count, 2), generator=self._generator).tolist()
        mirrored = (torch.rand(count, generator=self._generator) < 0.5).tolist()
        shifted = [
            image[:, top : top + self._side, left : left + self._side]
            for image, (top, left) in zip(padded, shifts, strict=True)
        ]
        return torch.stack(
            [
                image.flip(2) if flip else image
                for image, flip in zip(shifted, mirrored, strict=True)
            ]
        )


def _read_images(images: ImageFiles, side: int, workers: int) -> Tensor:
    """Read images, scaled to one size, with values from -1 to 1."""
    to_tensor = sources.need("torchvision.transforms.functional").pil_to_tensor

    def read(index: int) -> Tensor:
        found: Tensor = to_tensor(images.open(index).resize((side, side)))
        return found

    with ThreadPoolExecutor(workers) as pool:
        read_all = list(pool.map(read, range(len(images))))
    return torch.stack(read_all).float() / 127.5 - 1


def _stream_order(count: int, most: int | None, seed: int, purpose: str) -> Tensor:
    """Draw at most ``most`` of ``count`` examples; None shuffles all of them."""
    return torch.randperm(count, generator=stream(seed, purpose))[:most]
