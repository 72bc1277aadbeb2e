"""Peak memory of loaders and evaluations on data of the paper's size.

Each case runs in its own process on generated files in the publisher's layout, at two
sizes, and the resident memory at the paper's size is extrapolated linearly where the
larger of them is smaller. Resident memory includes file pages that are mapped, which
the system can drop. ``--share 1`` generates everything at full size.
"""

import argparse
import os
import random
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import records
import torch
from rich.console import Console
from rich.table import Table

from switch_ema.bench.loading import create_task
from switch_ema.zoo.data.sample_files import write_sample

GIGABYTE = 1e9
RESULT = records.RESULTS / "data_memory.json"


def wikitext(folder: Path, words: int) -> None:
    """Tokenise a text of 267,735 different words and take a batch of each kind."""
    target = folder / "wikitext-103"
    target.mkdir()
    draw = random.Random(0)
    with (target / "wiki.train.tokens").open("w") as file:
        for begin in range(0, words, 1000):
            chosen = (int(267_732 * draw.random() ** 4) for _ in range(1000))
            file.write(f" {' '.join(f'w{n}' for n in chosen)} \n")
            if begin == 0:
                every = " ".join(f"w{n}" for n in range(267_732))
                file.write(f" = {every} \n")
    (target / "wiki.test.tokens").write_text("w1 w2 w3\n" * 60_000)
    task: Any = create_task("bert-lm:scale=paper,dataset=wikitext103", (0,))
    next(iter(task.train_loader(0)))
    task.trivial()


def loss(folder: Path, tokens: int) -> None:
    """Take the loss and gradients of a classifier of 267,735 words."""
    from switch_ema.zoo.models.chunked_loss import chunked_cross_entropy

    weight = torch.zeros(267_735, 768, requires_grad=True)
    features = torch.randn(tokens, 768, requires_grad=True)
    targets = torch.randint(267_735, (tokens,))
    torch.autograd.backward(chunked_cross_entropy(features, weight, None, targets))


def yelp(folder: Path, texts: int) -> None:
    """Train a tokenizer on reviews of 130 words, encode them and take a batch."""
    target = folder / "yelp_review_full_csv"
    target.mkdir()
    draw = random.Random(0)
    words = [f"{a}{b}{c}" for a in "kbst" for b in "aeiou" for c in range(400)]
    for part, count in (("train", texts), ("test", texts // 13)):
        with (target / f"{part}.csv").open("w") as file:
            for number in range(count):
                text = " ".join(draw.choices(words, k=130))
                file.write(f'"{number % 5 + 1}","{text}"\n')
    options = "scale=paper,dataset=yelp,weights=none"
    task: Any = create_task(f"bert-text:{options}", (0,))
    next(iter(task.train_loader(0)))
    next(iter(task.evaluation_batches()))


def celeba(folder: Path, faces: int) -> None:
    """Read faces, take a batch, and draw from their pixel Gaussian."""
    from switch_ema.zoo.tasks.generation.frechet import pixel_gaussian

    # An eighth as many faces for tests as for training, as published.
    write_sample("celeba", folder, count=faces // 2)
    parts = [0] * faces + [2] * (faces // 8) + [1] * (faces // 2 - faces // 8)
    lines = [f"{n:06}.jpg {part}\n" for n, part in enumerate(parts, start=1)]
    (folder / "celeba" / "list_eval_partition.txt").write_text("".join(lines))
    (folder / "inception.pth").write_bytes(b"")
    options = "dataset=celeba,scale=paper,inception=inception.pth"
    task: Any = create_task(f"ddpm:{options}", (0,))
    next(iter(task.train_loader(0)))
    for _ in pixel_gaussian(task.x, 200, task.part, torch.Generator()):
        pass


def moving_mnist(folder: Path, clips: int) -> None:
    """Measure the trivial predictors on published clips."""
    write_sample("mnist", folder, count=1000)
    frames = np.random.default_rng(0).integers(0, 256, (20, 100, 64, 64), np.uint8)
    stored = np.lib.format.open_memmap(
        folder / "mnist_test_seq.npy", "w+", np.uint8, (20, clips, 64, 64)
    )
    for begin in range(0, clips, 100):
        stored[:, begin : begin + 100] = frames[:, : clips - begin]
    del stored
    create_task("moving-mnist:scale=paper", (0,)).trivial()


def stl10(folder: Path, images: int) -> None:
    """Read all training images for pre-training."""
    from switch_ema.zoo.tasks.ssl.images import load_for_pretraining

    write_sample("stl10", folder, count=100)
    frames = np.zeros(1000 * 3 * 96 * 96, dtype=np.uint8)
    with (folder / "stl10_binary" / "unlabeled_X.bin").open("wb") as file:
        for _ in range(images // 1000):
            frames.tofile(file)
    load_for_pretraining("stl10", 0, scale="paper")


CASES: dict[str, tuple[Callable[[Path, int], None], int, int]] = {
    "WikiText-103, words": (wikitext, 103_000_000, 4_000_000),
    "WikiText-103, tokens of a batch's loss": (loss, 2048, 512),
    "Yelp Review, texts": (yelp, 650_000, 30_000),
    "CelebA, faces": (celeba, 162_770, 32_000),
    "Moving MNIST, clips evaluated": (moving_mnist, 10_000, 1000),
    "STL-10, unlabelled images": (stl10, 100_000, 40_000),
}
"""What is run, the paper's size, and the least size to extrapolate from."""


def main() -> None:
    """Measure every case at two sizes; with --case run one, in this process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--share", type=float, default=0.0, help="of the full size")
    parser.add_argument("--repeats", type=int, default=1, help="the largest counts")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--size", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, default=RESULT)
    options = parser.parse_args()
    if options.case:
        run_case(options.case, options.size)
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
        table.add_row(name, sizes, f"{found['size']:,}: {found['full']:.2f} GB")
    Console().print(table)
    records.write(results, options.json)


def measured(name: str, share: float, repeats: int) -> dict[str, Any]:
    """Measure one case at two sizes, and extrapolate to the paper's."""
    _, full, least = CASES[name]
    large = min(max(round(share * full), least), full)
    sizes = [large // 2, large]
    found = [
        (size, max(in_own_process(name, size) for _ in range(repeats)))
        for size in sizes
    ]
    (small, first), (_, second) = found
    slope = max(second - first, 0) / (large - small)
    return {
        "size": full,
        "measured": found,
        "full": second + slope * (full - large),
    }


def in_own_process(name: str, size: int) -> float:
    """Return the peak resident memory of a case in a new process, in GB."""
    with tempfile.TemporaryDirectory() as folder:
        paths = {"SWITCH_EMA_DATA": folder, "XDG_CACHE_HOME": f"{folder}/cache"}
        done = subprocess.run(
            [sys.executable, __file__, "--case", name, "--size", str(size)],
            env={**os.environ, **paths},
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
    return float(done.stdout.splitlines()[-1])


def run_case(name: str, size: int) -> None:
    """Run a case and print this process's peak resident memory."""
    CASES[name][0](Path(os.environ["SWITCH_EMA_DATA"]), size)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux: KiB
    print(peak / GIGABYTE)


if __name__ == "__main__":
    main()
