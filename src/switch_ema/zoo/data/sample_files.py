"""Tiny datasets of random content in the publishers' layouts.

They have the formats, image sizes, class and vocabulary sizes of the real ones, but
only a few examples: enough to build every network of the paper at its full size and to
take a few steps, without the data. Nothing can be learned from them.
"""

import csv
import json
import pickle
import struct
from collections.abc import Callable, Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from switch_ema._checks import check_choice, check_count
from switch_ema.zoo.data import sources

_PICTURES = 8
"""Distinct images of a dataset of image files; encoding more would take long."""
_FIVE_STARS = 5
_WIKITEXT_WORDS, _PTB_WORDS = 267_735, 10_000
"""Vocabulary sizes, with the unknown word and the end of a line."""


def write_sample(name: str, folder: Path, *, count: int = 32) -> None:
    """Write a sample of a dataset in its publisher's layout.

    The same arguments give the same files.

    Args:
        name: One of ``SAMPLES``.
        folder: Folder of data, as ``SWITCH_EMA_DATA`` names one; made if missing.
        count: Training examples, and as many for tests; at least 2. Texts and images
            by class have as many as their vocabulary or their classes need.
    """
    check_choice("name", name, tuple(SAMPLES))
    check_count("count", count, 2)
    folder.mkdir(parents=True, exist_ok=True)
    SAMPLES[name](folder, count, np.random.default_rng(0))


def _write_mnist(folder: Path, count: int, generator: np.random.Generator) -> None:
    _write_idx_files(folder / "MNIST" / "raw", count, generator)


def _write_fashion(folder: Path, count: int, generator: np.random.Generator) -> None:
    _write_idx_files(folder / "FashionMNIST" / "raw", count, generator)


def _write_idx_files(raw: Path, count: int, generator: np.random.Generator) -> None:
    raw.mkdir(parents=True, exist_ok=True)
    for part in ("train", "t10k"):
        images = generator.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = np.arange(count, dtype=np.uint8) % 10
        for what, array in (("images-idx3", images), ("labels-idx1", labels)):
            header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
            (raw / f"{part}-{what}-ubyte").write_bytes(header + array.tobytes())


def _write_clips(folder: Path, count: int, generator: np.random.Generator) -> None:
    """Write Moving MNIST's test clips: frames, clips, height, width."""
    clips = generator.integers(0, 256, (20, count, 64, 64), dtype=np.uint8)
    np.save(folder / "mnist_test_seq.npy", clips)


def _write_cifar10(folder: Path, count: int, generator: np.random.Generator) -> None:
    target = folder / "cifar-10-batches-py"
    target.mkdir(exist_ok=True)
    parts = [f"data_batch_{number}" for number in range(1, 6)]
    for index, part in enumerate((*parts, "test_batch")):
        images = count if part == "test_batch" else -(-count // len(parts))
        batch = _cifar_batch(images, generator)
        labels = [(index + number) % 10 for number in range(images)]
        _write_pickle(target / part, {**batch, "labels": labels})
    meta = {"num_cases_per_batch": count, "num_vis": 3072}
    names = [f"class {number}" for number in range(10)]
    _write_pickle(target / "batches.meta", {**meta, "label_names": names})


def _write_cifar100(folder: Path, count: int, generator: np.random.Generator) -> None:
    target = folder / "cifar-100-python"
    target.mkdir(exist_ok=True)
    for part in ("train", "test"):
        images = max(count, 100)  # one of each class
        fine = [number % 100 for number in range(images)]
        labels = {"fine_labels": fine, "coarse_labels": [n // 5 for n in fine]}
        _write_pickle(target / part, {**_cifar_batch(images, generator), **labels})
    names = {"fine_label_names": 100, "coarse_label_names": 20}
    meta = {key: [f"class {n}" for n in range(most)] for key, most in names.items()}
    _write_pickle(target / "meta", meta)


def _cifar_batch(count: int, generator: np.random.Generator) -> dict[str, Any]:
    return {
        "data": generator.integers(0, 256, (count, 3 * 32 * 32), dtype=np.uint8),
        "filenames": [f"image_{number}.png" for number in range(count)],
        "batch_label": "sample",
    }


class _Python2Pickler(pickle._Pickler):
    """Writes text and bytes as Python 2's strings, as in CIFAR's published files."""

    dispatch: ClassVar[dict[type, Any]] = dict(pickle._Pickler.dispatch)

    def _save_string(self, value: str | bytes) -> None:
        raw = value.encode() if isinstance(value, str) else value
        self.write(pickle.BINSTRING + struct.pack("<i", len(raw)) + raw)  # type: ignore[attr-defined]
        self.memoize(value)  # type: ignore[attr-defined]

    dispatch[str] = dispatch[bytes] = _save_string


def _write_pickle(path: Path, content: dict[str, Any]) -> None:
    stored = BytesIO()
    _Python2Pickler(stored, protocol=2).dump(content)
    # The name of NumPy's module when CIFAR was published, of the same meaning.
    path.write_bytes(stored.getvalue().replace(b"numpy._core.", b"numpy.core."))


def _write_stl10(folder: Path, count: int, generator: np.random.Generator) -> None:
    target = folder / "stl10_binary"
    target.mkdir(exist_ok=True)
    for part in ("train", "test", "unlabeled"):
        images = generator.integers(0, 256, (count, 3, 96, 96), dtype=np.uint8)
        images.tofile(target / f"{part}_X.bin")
        if part != "unlabeled":
            labels = np.arange(count, dtype=np.uint8) % 10 + 1
            labels.tofile(target / f"{part}_y.bin")
    names = "".join(f"class{number}\n" for number in range(10))
    (target / "class_names.txt").write_text(names)
    (target / "fold_indices.txt").write_text(" ".join(map(str, range(count))) + "\n")


def _write_imagenet(folder: Path, count: int, generator: np.random.Generator) -> None:
    """Write every one of the 1,000 classes; an image of each, and more up to count."""
    synsets = sources.need("timm.data").ImageNetInfo().label_names()
    files = _encoded(generator, (500, 375))
    for part in ("train", "val"):
        for index, synset in enumerate(synsets):
            target = folder / "imagenet" / part / synset
            target.mkdir(parents=True, exist_ok=True)
            for number in range(-(-(count - index) // len(synsets)) or 1):
                name = f"{synset}_{number + 1}.JPEG"
                (target / name).write_bytes(files[(index + number) % len(files)])


def _write_celeba(folder: Path, count: int, generator: np.random.Generator) -> None:
    """Write aligned faces with the files of their parts and identities."""
    target = folder / "celeba"
    (target / "img_align_celeba").mkdir(parents=True, exist_ok=True)
    files = _encoded(generator, (178, 218))
    names = [f"{number:06}.jpg" for number in range(1, 3 * count + 1)]
    for number, name in enumerate(names):
        path = target / "img_align_celeba" / name
        path.write_bytes(files[number % len(files)])
    parts = [f"{name} {number // count}\n" for number, name in enumerate(names)]
    (target / "list_eval_partition.txt").write_text("".join(parts))
    people = [f"{name} {number % 7 + 1}\n" for number, name in enumerate(names)]
    (target / "identity_CelebA.txt").write_text("".join(people))


def _write_coco(folder: Path, count: int, generator: np.random.Generator) -> None:
    """Write images with boxes and polygons of COCO's 80 categories."""
    info = sources.need("torchvision.models.detection")
    names = info.RetinaNet_ResNet50_FPN_Weights.COCO_V1.meta["categories"]
    categories = [
        {"id": number, "name": name, "supercategory": "thing"}
        for number, name in enumerate(names)
        if name not in ("__background__", "N/A")
    ]
    width, height = 640, 480
    files = _encoded(generator, (width, height))
    target = folder / "coco"
    (target / "annotations").mkdir(parents=True, exist_ok=True)
    for part in ("train2017", "val2017"):
        (target / part).mkdir(exist_ok=True)
        images, annotations = list[dict[str, Any]](), list[dict[str, Any]]()
        for number in range(1, count + 1):
            name = f"{number:012}.jpg"
            (target / part / name).write_bytes(files[number % len(files)])
            size = {"width": width, "height": height}
            images.append({"id": number, "file_name": name, **size})
            for _ in range(3):
                category = categories[len(annotations) % len(categories)]["id"]
                box = _random_box(generator, width, height)
                own = {"id": len(annotations) + 1, "image_id": number}
                annotations.append({**own, "category_id": category, **box})
        content = {"images": images, "annotations": annotations}
        path = target / "annotations" / f"instances_{part}.json"
        path.write_text(json.dumps({**content, "categories": categories}))


def _random_box(
    generator: np.random.Generator, width: int, height: int
) -> dict[str, Any]:
    """Return a box of at least 40 pixels, and a polygon that fills it."""
    wide, high = (int(generator.integers(40, side // 2)) for side in (width, height))
    x, y = int(generator.integers(width - wide)), int(generator.integers(height - high))
    corners = [x, y, x + wide, y, x + wide, y + high, x, y + high]
    return {
        "bbox": [x, y, wide, high],
        "area": wide * high,
        "iscrowd": 0,
        "segmentation": [corners],
    }


def _write_agedb(folder: Path, count: int, generator: np.random.Generator) -> None:
    _write_faces(folder / "agedb", "agedb.csv", "AgeDB", count, generator)


def _write_imdb_wiki(folder: Path, count: int, generator: np.random.Generator) -> None:
    _write_faces(folder / "imdb_wiki", "imdb_wiki.csv", "imdb_crop", count, generator)


def _write_faces(
    folder: Path, table: str, inside: str, count: int, generator: np.random.Generator
) -> None:
    """Write faces and the CSV of their usual preprocessing."""
    (folder / inside).mkdir(parents=True, exist_ok=True)
    files = _encoded(generator, (224, 224))
    lines = ["age,path,split"]
    for part in ("train", "val", "test"):
        for number in range(count):
            path = f"{inside}/{part}_{number}.jpg"
            (folder / path).write_bytes(files[number % len(files)])
            lines.append(f"{generator.integers(1, 100)},{path},{part}")
    (folder / table).write_text("\n".join(lines) + "\n")


def _write_ptb(folder: Path, count: int, generator: np.random.Generator) -> None:
    target = folder / "simple-examples" / "data"
    target.mkdir(parents=True, exist_ok=True)
    words = [f"w{number}" for number in range(_PTB_WORDS - 2)]
    for part in ("train", "valid", "test"):
        content = words if part == "train" else words[: 100 * count]
        lines = [f" {' '.join(line)} \n" for line in _lines([*content, "<unk>"], 20)]
        (target / f"ptb.{part}.txt").write_text("".join(lines))


def _write_wikitext(folder: Path, count: int, generator: np.random.Generator) -> None:
    target = folder / "wikitext-103"
    target.mkdir(exist_ok=True)
    words = [f"w{number}" for number in range(_WIKITEXT_WORDS - 3)]
    for part in ("train", "valid", "test"):
        content = words if part == "train" else words[: 1000 * count]
        # Articles begin with a heading between empty lines.
        lines = [" \n", " = w0 = \n", " \n"]
        lines += [f" {' '.join(line)} \n" for line in _lines([*content, "<unk>"], 100)]
        (target / f"wiki.{part}.tokens").write_text("".join(lines))


def _lines(words: Sequence[str], length: int) -> Iterator[Sequence[str]]:
    for begin in range(0, len(words), length):
        yield words[begin : begin + length]


def _write_yelp(folder: Path, count: int, generator: np.random.Generator) -> None:
    target = folder / "yelp_review_full_csv"
    target.mkdir(exist_ok=True)
    # Each word at least once, enough for a tokenizer with BERT's vocabulary of 30,522.
    words = [f"{first}{number}" for first in "abcdefgh" for number in range(4000)]
    each = max(-(-len(words) // count), 120)
    for part in ("train", "test"):
        with (target / f"{part}.csv").open("w", encoding="utf-8", newline="") as file:
            rows = csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator="\n")
            for number in range(count):
                begin = number * each
                text = " ".join(
                    words[n % len(words)] for n in range(begin, begin + each)
                )
                rows.writerow([number % _FIVE_STARS + 1, f'{text}\\n"quoted", text'])


def _encoded(generator: np.random.Generator, size: tuple[int, int]) -> list[bytes]:
    """Encode a few smooth random images as JPEG."""
    pictures = sources.need("PIL.Image")
    files = []
    for _ in range(_PICTURES):
        coarse = generator.integers(0, 256, (16, 16, 3), dtype=np.uint8)
        stored = BytesIO()
        pictures.fromarray(coarse).resize(size).save(stored, "JPEG")
        files.append(stored.getvalue())
    return files


SAMPLES: dict[str, Callable[[Path, int, np.random.Generator], None]] = {
    "mnist": _write_mnist,
    "fashion_mnist": _write_fashion,
    "moving_mnist": _write_clips,
    "cifar10": _write_cifar10,
    "cifar100": _write_cifar100,
    "stl10": _write_stl10,
    "imagenet": _write_imagenet,
    "celeba": _write_celeba,
    "coco": _write_coco,
    "agedb": _write_agedb,
    "imdb-wiki": _write_imdb_wiki,
    "ptb": _write_ptb,
    "wikitext103": _write_wikitext,
    "yelp": _write_yelp,
}
"""The writers, by dataset: all that the paper's rows need."""
