"""Peak memory of loaders and evaluations on data of the paper's size.

Each case writes files in the publisher's layout and is then measured in a process of
its own, at the size of the paper or at two smaller ones, from which the memory at that
size is extrapolated linearly. Resident memory includes file pages that are
mapped, which the system can drop. ``--share 1`` measures everything at full size, and
``--share 0.1`` most of it at a tenth.
"""

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import records
import torch
from rich.console import Console
from rich.table import Table

from switch_ema.bench.loading import create_task
from switch_ema.zoo.data.sample_files import write_sample
from switch_ema.zoo.data.sources import need

GIGABYTE = 1e9
RESULT = records.RESULTS / "data_memory.json"
READERS = 2
"""Processes that read images, as many as this machine has cores."""
_LINKS = 50_000
"""Links to one file; ext4 allows 65,000."""


def write_wikitext(folder: Path, words: int) -> None:
    """Write a text of 267,735 different words."""
    target = folder / "wikitext-103"
    target.mkdir()
    draw = random.Random(0)
    with (target / "wiki.train.tokens").open("w") as file:
        every = " ".join(f"w{n}" for n in range(267_732))
        file.write(f" = {every} \n")
        for _ in range(0, words, 1000):
            chosen = (int(267_732 * draw.random() ** 4) for _ in range(1000))
            file.write(f" {' '.join(f'w{n}' for n in chosen)} \n")
    (target / "wiki.test.tokens").write_text("w1 w2 w3\n" * 60_000)


def read_wikitext(folder: Path, words: int) -> None:
    """Tokenise the text, take a batch, and measure the unigram model."""
    task: Any = create_task("bert-lm:scale=paper,dataset=wikitext103", (0,))
    next(iter(task.train_loader(0)))
    task.trivial()


def compute_loss(folder: Path, tokens: int) -> None:
    """Compute the loss and gradients of a classifier of 267,735 words."""
    from switch_ema.zoo.models.chunked_loss import chunked_cross_entropy

    weight = torch.zeros(267_735, 768, requires_grad=True)
    features = torch.randn(tokens, 768, requires_grad=True)
    targets = torch.randint(267_735, (tokens,))
    torch.autograd.backward(chunked_cross_entropy(features, weight, None, targets))


def write_yelp(folder: Path, texts: int) -> None:
    """Write reviews of 130 words."""
    target = folder / "yelp_review_full_csv"
    target.mkdir()
    draw = random.Random(0)
    words = [f"{a}{b}{c}" for a in "kbst" for b in "aeiou" for c in range(400)]
    for part, count in (("train", texts), ("test", texts // 13)):
        with (target / f"{part}.csv").open("w") as file:
            for number in range(count):
                text = " ".join(draw.choices(words, k=130))
                file.write(f'"{number % 5 + 1}","{text}"\n')


def read_yelp(folder: Path, texts: int) -> None:
    """Train a tokenizer, encode the texts, and take a batch of each part."""
    task: Any = create_task("bert-text:scale=paper,dataset=yelp,weights=none", (0,))
    next(iter(task.train_loader(0)))
    next(iter(task.evaluation_batches()))


def write_celeba(folder: Path, faces: int) -> None:
    """Write training faces and an eighth as many for tests, as published."""
    names = [f"{number:06}.jpg" for number in range(1, faces + faces // 8 + 1)]
    # Smaller than published ones, which are read in more time and no more memory.
    link(folder / "celeba" / "img_align_celeba", names, size=(64, 64))
    lines = [f"{name} {2 * (n >= faces)}\n" for n, name in enumerate(names)]
    (folder / "celeba" / "list_eval_partition.txt").write_text("".join(lines))
    (folder / "inception.pth").write_bytes(b"")


def read_celeba(folder: Path, faces: int) -> None:
    """Read the faces, take a batch, and draw from their pixel Gaussian."""
    from switch_ema.zoo.tasks.generation.frechet import pixel_gaussian

    options = "dataset=celeba,scale=paper,inception=inception.pth"
    task: Any = create_task(f"ddpm:{options}", (0,))
    next(iter(task.train_loader(0)))
    for _ in pixel_gaussian(task.x, 200, task.part, torch.Generator()):
        pass


def write_inception(folder: Path, images: int) -> None:
    """Write untrained weights of FID's network."""
    from switch_ema.zoo.tasks.generation.frechet import write_untrained_inception

    write_untrained_inception(folder / "inception.pth")


def compute_fid(folder: Path, images: int) -> None:
    """Compare as many generated as real images of 64 pixels."""
    from switch_ema.zoo.tasks.generation.frechet import FrechetDistance

    def parts() -> Iterator[torch.Tensor]:
        for _ in range(0, images, 100):
            yield torch.rand(min(images, 100), 3, 64, 64)

    FrechetDistance(parts(), str(folder / "inception.pth"))(parts())


def write_moving_mnist(folder: Path, clips: int) -> None:
    """Write the published test clips."""
    write_sample("mnist", folder, count=1000)
    frames = np.random.default_rng(0).integers(0, 256, (20, 100, 64, 64), np.uint8)
    stored = np.lib.format.open_memmap(
        folder / "mnist_test_seq.npy", "w+", np.uint8, (20, clips, 64, 64)
    )
    for begin in range(0, clips, 100):
        stored[:, begin : begin + 100] = frames[:, : clips - begin]


def read_moving_mnist(folder: Path, clips: int) -> None:
    """Measure the trivial predictors on the published clips."""
    create_task("moving-mnist:scale=paper", (0,)).trivial()


def write_stl10(folder: Path, images: int) -> None:
    """Write 20 unlabelled images for each labelled one, as published."""
    write_sample("stl10", folder, count=2)
    frames = np.zeros(1000 * 3 * 96 * 96, dtype=np.uint8)
    for name, count in (("unlabeled", images), ("train", 5000), ("test", 8000)):
        with (folder / "stl10_binary" / f"{name}_X.bin").open("wb") as file:
            for _ in range(count // 1000):
                frames.tofile(file)
        labels = np.arange(count, dtype=np.uint8) % 10 + 1
        if name != "unlabeled":
            labels.tofile(folder / "stl10_binary" / f"{name}_y.bin")


def read_stl10(folder: Path, images: int) -> None:
    """Read all training images for pre-training, and take a batch of two views."""
    task: Any = create_task(
        f"simclr:dataset=stl10,scale=paper,batch=64,workers={READERS}", (0,)
    )
    next(iter(task.train_loader(0)))


def write_imagenet(folder: Path, images: int) -> None:
    """Write as many training images in 1,000 folders, and 50 for tests in each."""
    classes = [f"n{number:08}" for number in range(1000)]
    each = -(-images // len(classes))
    for part, count in (("train", each), ("val", 50)):
        for index, name in enumerate(classes):
            kept = min(count, images - index * count) if part == "train" else count
            names = [f"{name}_{number:08}.JPEG" for number in range(kept)]
            link(folder / "imagenet" / part / name, names, size=(64, 64))


def read_imagenet(folder: Path, images: int) -> None:
    """List the files, and read and augment a batch of 1,024 with DeiT's procedure."""
    options = "dataset=imagenet,scale=paper,network=deit-t,procedure=deit"
    task: Any = create_task(f"classification:{options},workers={READERS}", (0,))
    assert len(task.x) == images
    next(iter(task.train_loader(0)))
    print_readers()


def measure_logits(folder: Path, images: int) -> None:
    """Measure accuracy and calibration from the logits of 1,000 classes."""
    from switch_ema.zoo.tasks.classification.classification import _calibration
    from switch_ema.zoo.tasks.metrics import classified

    logits, labels = torch.randn(images, 1000), torch.randint(1000, (images,))
    classified(logits, labels)
    _calibration(logits, labels)


def fit_probe(folder: Path, images: int) -> None:
    """Fit a linear probe on a ResNet-50's features; classify 50,000 test images."""
    from switch_ema.zoo.tasks.ssl.evaluation import LinearProbe

    probe = LinearProbe(2048, 1000)
    for _ in range(0, images, 250):
        probe.add(torch.randn(250, 2048), torch.randint(1000, (250,)))
    probe.predict(torch.randn(50_000, 2048))


def write_coco(folder: Path, images: int) -> None:
    """Write as many training images, 5,000 for tests, and 7.27 outlines for each.

    The 860,001 entries of training images are a third longer than COCO's.
    """
    write_sample("coco", folder, count=2)
    target = folder / "coco"
    stored = (target / "annotations" / "instances_train2017.json").read_text()
    categories = json.loads(stored)["categories"]
    draw = random.Random(0)
    corners = [[round(draw.uniform(1, 470), 2) for _ in range(57)] for _ in range(100)]
    outlines = [json.dumps([[*one, one[0]]]) for one in corners]
    for part, count in (("train2017", images), ("val2017", 5000)):
        names = [f"{number:012}.jpg" for number in range(1, count + 1)]
        link(target / part, names, size=(640, 480))
        with (target / "annotations" / f"instances_{part}.json").open("w") as file:
            entries = (
                json.dumps(
                    {
                        "license": 3,
                        "file_name": name,
                        "coco_url": f"http://images.cocodataset.org/{part}/{name}",
                        "height": 480,
                        "width": 640,
                        "date_captured": "2013-11-14 11:18:45",
                        "flickr_url": f"http://farm9.staticflickr.com/8186/{name}_z.jpg",
                        "id": number,
                    }
                )
                for number, name in enumerate(names, start=1)
            )
            write_list(file, '{"info": {}, "images": ', entries)
            objects = (
                f'{{"segmentation": {outlines[n % 100]}, "area": 702.1057499999998, '
                f'"iscrowd": 0, "image_id": {n % count + 1}, "bbox": [73.91, 81.2, '
                f'36.58, 28.05], "category_id": {categories[n % 80]["id"]}, "id": {n}}}'
                for n in range(round(count * 7.2704))
            )
            write_list(file, ', "annotations": ', objects)
            file.write(f', "categories": {json.dumps(categories)}}}')


def write_list(file: Any, before: str, entries: Iterator[str]) -> None:
    """Write a list entry by entry."""
    file.write(f"{before}[{next(entries)}")
    for entry in entries:
        file.write(f", {entry}")
    file.write("]")


def read_coco(folder: Path, images: int) -> None:
    """Open the annotations, and take a batch of 16 images with masks."""
    options = f"scale=paper,dataset=coco,weights=none,workers={READERS}"
    task: Any = create_task(f"mask-rcnn:{options}", (0,))
    assert len(task.data.train) == images
    next(iter(task.train_loader(0)))
    print_readers()


def measure_detections(folder: Path, images: int) -> None:
    """Measure 100 detected boxes and masks for each image."""
    from switch_ema.zoo.tasks.detection.measure import average_precision

    masks = torch.zeros(100, 480, 640, dtype=torch.uint8)
    for index in range(100):
        masks[index, 3 * index : 3 * index + 150, 4 * index : 4 * index + 200] = 1
    corners = torch.arange(100.0)[:, None] * torch.tensor([4.0, 3.0, 4.0, 3.0])
    boxes = corners + torch.tensor([0.0, 0.0, 200.0, 150.0])
    labels = torch.arange(100) % 80 + 1

    def found() -> Iterator[Any]:
        for _ in range(images):
            detected = {"boxes": boxes, "labels": labels, "masks": masks}
            truth = {key: value[:7] for key, value in detected.items()}
            yield {**detected, "scores": torch.rand(100)}, truth

    average_precision(found(), masks=True)


def write_rcf_mnist(folder: Path, images: int) -> None:
    """Write clothes and photos, as many for tests as for training."""
    write_sample("fashion_mnist", folder, count=images)
    write_sample("cifar10", folder, count=50_000)


def read_rcf_mnist(folder: Path, images: int) -> None:
    """Rotate and colour all images, and take a batch."""
    task: Any = create_task("rcf-mnist:scale=paper", (0,))
    next(iter(task.train_loader(0)))


def nothing(folder: Path, size: int) -> None:
    """Write no files."""


@dataclass(frozen=True)
class Case:
    """What is written and measured, and at which sizes."""

    write: Callable[[Path, int], None]
    run: Callable[[Path, int], None]
    full: int
    """The paper's size."""
    least: int
    """The least size to extrapolate from."""


CASES = {
    "WikiText-103, words": Case(write_wikitext, read_wikitext, 103_227_021, 4_000_000),
    "WikiText-103, tokens of a loss": Case(nothing, compute_loss, 2048, 512),
    "Yelp Review, texts": Case(write_yelp, read_yelp, 650_000, 30_000),
    "CelebA, faces": Case(write_celeba, read_celeba, 162_770, 32_000),
    "FID, images": Case(write_inception, compute_fid, 50_000, 200),
    "Moving MNIST, clips": Case(write_moving_mnist, read_moving_mnist, 10_000, 1000),
    "STL-10, images": Case(write_stl10, read_stl10, 100_000, 40_000),
    "ImageNet, files": Case(write_imagenet, read_imagenet, 1_281_167, 100_000),
    "ImageNet, logits": Case(nothing, measure_logits, 50_000, 10_000),
    "ImageNet, probed images": Case(nothing, fit_probe, 1_281_167, 50_000),
    "COCO, images": Case(write_coco, read_coco, 118_287, 10_000),
    "COCO, evaluated images": Case(nothing, measure_detections, 5000, 40),
    "RCF-MNIST, images": Case(write_rcf_mnist, read_rcf_mnist, 60_000, 10_000),
}


def link(folder: Path, names: list[str], *, size: tuple[int, int]) -> None:
    """Write JPEG files of one content, most of them as links."""
    folder.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    image = need("PIL.Image").fromarray(pixels).resize(size)
    for begin in range(0, len(names), _LINKS):
        first, *others = names[begin : begin + _LINKS]
        (folder / first).unlink(missing_ok=True)
        image.save(folder / first, "JPEG")
        for name in others:
            (folder / name).unlink(missing_ok=True)
            os.link(folder / first, folder / name)


def print_readers() -> None:
    """Print the largest private memory of a process that reads data."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(status.read_text().rpartition(")")[2].split()[1]) == os.getpid():
                rollup = (status.parent / "smaps_rollup").read_text()
                lines = (line.split() for line in rollup.splitlines())
                private = (int(w[1]) for w in lines if w[0].startswith("Private_"))
                found.append(sum(private) * 1024)
        except (OSError, ValueError):  # it has just ended
            continue
    print("readers", max(found, default=0) / GIGABYTE)


def main() -> None:
    """Measure every case at two sizes; with --case run one, in this process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--share", type=float, default=0.0, help="of the full size")
    parser.add_argument("--repeats", type=int, default=1, help="the largest counts")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--size", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--write", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, default=RESULT)
    options = parser.parse_args()
    if options.case:
        run_case(options.case, options.size, is_writing=options.write)
        return
    results = records.describe_run()
    results["cases"] = {
        name: measured(name, options.share, options.repeats)
        for name in CASES
        if options.only in name
    }
    table = Table("", "measured", "at the paper's size")
    for name, found in results["cases"].items():
        sizes = ", ".join(f"{s:,}: {g:.2f} GB" for s, g in found["measured"])
        more = f", and {found['reader']:.2f} GB a reader" if found["reader"] else ""
        table.add_row(name, sizes, f"{found['size']:,}: {found['full']:.2f} GB{more}")
    Console().print(table)
    records.write(results, options.json)


def measured(name: str, share: float, repeats: int) -> dict[str, Any]:
    """Measure one case at the paper's size, or at two others and extrapolate."""
    case = CASES[name]
    large = min(max(round(share * case.full), case.least), case.full)
    sizes = [large] if large == case.full else [large // 2, large]
    found = []
    for size in sizes:
        runs = [in_own_process(name, size) for _ in range(repeats)]
        found.append((size, max(gigabytes for gigabytes, _ in runs)))
    (before, less), (_, most) = found[0], found[-1]
    slope = max(most - less, 0) / max(large - before, 1)
    return {
        "size": case.full,
        "measured": found,
        "full": most + slope * (case.full - large),
        "reader": max(reader for _, reader in runs),
    }


def in_own_process(name: str, size: int) -> tuple[float, float]:
    """Return the peak memory of a case in a new process and of a reader, in GB."""
    with tempfile.TemporaryDirectory() as folder:
        paths = {"SWITCH_EMA_DATA": folder, "XDG_CACHE_HOME": f"{folder}/cache"}
        run = [sys.executable, __file__, "--case", name, "--size", str(size)]
        own = {**os.environ, **paths}
        subprocess.run([*run, "--write"], env=own, check=True)
        done = subprocess.run(
            run, env=own, check=True, stdout=subprocess.PIPE, text=True
        )
    values = dict(line.split() for line in done.stdout.splitlines())
    return float(values["peak"]), float(values.get("readers", 0))


def run_case(name: str, size: int, *, is_writing: bool) -> None:
    """Write the files of a case, or run it and print the peak resident memory."""
    case, folder = CASES[name], Path(os.environ["SWITCH_EMA_DATA"])
    if is_writing:
        case.write(folder, size)
        return
    case.run(folder, size)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux: KiB
    print("peak", peak / GIGABYTE)


if __name__ == "__main__":
    main()
