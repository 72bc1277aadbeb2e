"""The input pipeline at the paper's size, against plain torchvision and timm.

    python benchmarks/input.py [--repeats 7]

How many images a second does the training process take from workers that have them
ready, if the network does nothing? How many does a processor second read and augment,
workers included? What does a step of ResNet-50 cost in our loop? All in processor time,
interleaved. The images are generated JPEG files of 500 by 375 pixels.
"""

import argparse
import gc
import os
import resource
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import records
import timm
import torch
from PIL import Image
from rich.console import Console
from rich.table import Table
from timing import Repeats, interleave, summarize
from timm.data import Mixup
from timm.data.random_erasing import RandomErasing
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from switch_ema.bench.plan.cells import make_plan
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.task import Recipe
from switch_ema.bench.train.context import RunContext
from switch_ema.bench.train.loop import Training
from switch_ema.zoo.data.sample_loader import EpochOrder
from switch_ema.zoo.data.vision import VisionSet, load_vision
from switch_ema.zoo.procedures import TrainingProcedure, augment, create_procedure
from switch_ema.zoo.procedures.losses import classification_loss
from switch_ema.zoo.tasks.classification.classification import Classification
from switch_ema.zoo.tasks.image_batches import ImageLoader

PROCEDURES = ("pytorch", "deit")
"""Columns of the paper's Table A3: basic augmentation, and everything."""
OURS, PLAIN = "switch-ema", "plain"
IMAGES, CHUNK, CHUNKS = 2048, 64, 16
"""Images of an epoch; images that a worker sends at once; how many such are kept."""
LOADED, WORKERS = 384, 2
"""Images that are read from files, and processes that read them."""
STEPS, BATCH = 2, 4
"""Steps of ResNet-50 that are timed at once, and their batch size."""


class Constant(nn.Module):
    """A network that does nothing: it predicts the same for every image."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(classes))

    def forward(self, images: Tensor) -> Tensor:
        return self.bias.expand(len(images), -1)


class Ready:
    """Stands for workers that are always ahead of the training."""

    def __init__(self, chunks: Sequence[Sequence[Tensor]]) -> None:
        self.kept = chunks

    def chunks(self, order: EpochOrder, **options: Any) -> Iterator[list[Any]]:
        sent = 0
        for batch in range(len(order)):
            found = []
            for begin in range(0, order.examples(batch), CHUNK):
                count = min(CHUNK, order.examples(batch) - begin)
                found.append([part[:count] for part in self.kept[sent % CHUNKS]])
                sent += 1
            yield found


class Nothing(Classification):
    """Trains a network that does nothing, on images that are ready."""

    def model(self) -> nn.Module:
        return Constant(self.data.classes)

    def train_loader(self, epoch: int) -> Any:
        images = self._training_images
        if not isinstance(images.reader, Ready):
            images.reader = Ready(read_chunks(images))  # type: ignore[assignment]
        return images.epoch(epoch)


class Steps(Nothing):
    """Trains the task's own network in small batches, on images that are ready."""

    def train_loader(self, epoch: int) -> Any:
        self.batch = BATCH
        batches = super().train_loader(epoch)
        batches.order = batches.order[: STEPS * BATCH]
        return batches

    @classmethod
    def recipe_for(cls, options: Mapping[str, Any]) -> Recipe:
        return replace(super().recipe_for(options), accumulate=1)

    def model(self) -> nn.Module:
        return Classification.model(self)


def read_chunks(images: ImageLoader) -> list[Sequence[Tensor]]:
    """Read different chunks, so that they do not fit into the processor's cache."""
    numbers = torch.arange(CHUNK) % len(images.data.y_train)
    order = EpochOrder(numbers, numbers, CHUNK)
    ((chunk,),) = images.reader.chunks(order)
    return [[part.clone() for part in chunk] for _ in range(CHUNKS)]


def epoch_of_ours(task: str, folder: Path) -> Callable[[], None]:
    """Return a function that trains a task of this file for an epoch in our loop."""
    name = f"{__file__}:{task},dataset=imagenet,scale=paper,workers=0,folder={folder}"
    config = CompareConfig(tasks=(name,), methods=("plain",), seeds=1)
    (cell,) = make_plan(config)
    training = Training(cell, RunContext(folder / "run", "cpu"))

    def run() -> None:
        training._train_epoch()
        training.epoch += 1

    return run


def ready(procedure: str, folder: Path) -> dict[str, Callable[[], None]]:
    """The training process alone: ours, and the same with torch and timm."""
    settings = create_procedure(procedure, network="resnet50")
    data = load_vision("imagenet", 0, folder=str(folder))
    chunks = read_chunks(loader_of(data, settings))
    size = min(settings.batch_size, IMAGES)
    per_batch = size // CHUNK
    batch = [
        torch.cat(parts)
        for parts in zip(*(chunks * per_batch)[:per_batch], strict=True)
    ]
    model = Constant(data.classes)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    erase = RandomErasing(settings.erasing, mode="pixel", device="cpu")
    blend = Mixup(settings.mixup, settings.cutmix, num_classes=data.classes)

    def plain() -> None:
        for _ in range(IMAGES // size):
            x, y = (batch[0].float() - data.mean) / data.deviation, batch[1]
            x = erase(x) if settings.erasing else x
            x, y = blend(x, y) if settings.mixes else (x, y)
            optimizer.zero_grad()
            classification_loss(model(x), y, settings).backward()
            optimizer.step()

    ours = epoch_of_ours(f"Nothing:network=resnet50,procedure={procedure}", folder)
    return {PLAIN: plain, OURS: ours}


def loaded(procedure: str, folder: Path) -> dict[str, Callable[[], None]]:
    """Files to batches: ours, and ImageFolder with a DataLoader."""
    settings = create_procedure(procedure, network="resnet50")
    settings = replace(settings, mixup=0.0, cutmix=0.0, repeats=1)
    data = load_vision("imagenet", 0, folder=str(folder))
    few = torch.arange(LOADED)
    data = replace(data, x_train=data.x_train[few], y_train=data.y_train[few])
    steps = [augment.image_transform(settings, 224, flip=True), v2.PILToTensor()]
    steps += [v2.ToDtype(torch.float32, scale=True)]
    mean, deviation = data.mean.flatten() / 255, data.deviation.flatten() / 255
    steps += [v2.Normalize(mean.tolist(), deviation.tolist())]
    if settings.erasing:
        steps += [v2.RandomErasing(settings.erasing, (0.02, 1 / 3), value="random")]
    files = ImageFolder(folder / "train", v2.Compose(steps))
    some = torch.utils.data.Subset(files, few.tolist())

    def plain() -> None:
        for _ in DataLoader(some, CHUNK, shuffle=True, num_workers=WORKERS):
            pass
        gc.collect()

    def ours() -> None:
        for _ in loader_of(data, settings, WORKERS).epoch(0):
            pass
        gc.collect()  # ends the workers, whose time counts from then on

    return {PLAIN: plain, OURS: ours}


def loader_of(
    data: VisionSet, settings: TrainingProcedure, workers: int = 0
) -> ImageLoader:
    return ImageLoader(
        data, settings, resolution=224, batch=CHUNK, seed=0, workers=workers
    )


def steps(folder: Path) -> dict[str, Callable[[], None]]:
    """Optimizer steps of ResNet-50: ours, and a bare loop with timm's network."""
    torch.manual_seed(0)
    model = timm.create_model("resnet50", num_classes=2)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4
    )
    x, y = torch.randn(BATCH, 3, 224, 224), torch.randint(2, (BATCH,))

    def plain() -> None:
        for _ in range(STEPS):
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()

    task = "Steps:network=resnet50,procedure=pytorch"
    return {PLAIN: plain, OURS: epoch_of_ours(task, folder)}


def processor_seconds() -> float:
    """Return the processor time of this process and of those that it has ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime


def write_images(folder: Path) -> None:
    """Write a few generated photos, and links to them, in ImageNet's layout."""
    generator = np.random.default_rng(0)
    for part, count in (("train", IMAGES), ("val", 2)):
        for name in ("a", "b"):
            (folder / part / name).mkdir(parents=True)
        for index in range(count):
            path = folder / part / "ab"[index % 2] / f"{index}.jpg"
            if index < CHUNK:
                small = generator.integers(0, 256, (48, 64, 3), dtype=np.uint8)
                photo = Image.fromarray(small).resize((500, 375), Image.BICUBIC)
                photo.save(path, quality=90)
            else:
                first = index % CHUNK
                os.link(folder / part / "ab"[first % 2] / f"{first}.jpg", path)


def measure(
    calls: dict[str, Callable[[], None]], images: int, repeats: int
) -> dict[str, Any]:
    into = Repeats()
    interleave(calls, repeats, into, lambda: None, clock=processor_seconds)
    return {
        name: {**asdict(timing), "images per second": images / timing.ms * 1e3}
        for name, timing in summarize(into, PLAIN).items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", type=Path, default=records.RESULTS / "input.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results = {**records.describe_run(), "repeats": arguments.repeats, "measured": {}}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_images(folder)
        cases: dict[str, tuple[dict[str, Callable[[], None]], int]] = {}
        for procedure in PROCEDURES:
            cases[f"ready, {procedure}"] = (ready(procedure, folder), IMAGES)
            cases[f"loaded, {procedure}"] = (loaded(procedure, folder), LOADED)
        cases["steps, resnet50"] = (steps(folder), STEPS * BATCH)
        table = Table("what", "", "images per processor second", "time, ratio", "")
        for case, (calls, images) in cases.items():
            found = measure(calls, images, arguments.repeats)
            results["measured"][case] = found
            for who, timing in found.items():
                low, high = timing["quartiles"]
                rate, ratio = timing["images per second"], timing["ratio"]
                table.add_row(
                    *(case, who, f"{rate:,.1f}", f"{ratio:.3f}"),
                    f"{low:.3f} to {high:.3f}",
                )
            table.add_section()
    Console().print(table)
    records.write(results, arguments.json)


if __name__ == "__main__":
    main()
