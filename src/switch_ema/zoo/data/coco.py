"""Folders of images with boxes and masks in COCO format.

Annotation files are found by name: ``annotations/instances_train*.json`` and
``..._val*.json`` as in COCO, or ``train.json`` and ``val.json``. Images are in
``train2017/``, ``images/``, ``images.tar`` or next to the annotations, under the file
name given there.

Real files have errors. Unusable entries (a missing or broken image, a box without
area, an unknown category or image, a mask whose size differs from its image's) are
skipped, counted and named in ``problems``; the rest is used.
"""

import io
import json
import math
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from switch_ema.bench.broken_files import BrokenFile
from switch_ema.bench.errors import UsageError
from switch_ema.zoo.data import sources

_PARTS = {
    "training": ("annotations/instances_train*.json", "train.json", "*/train.json"),
    "tests": ("annotations/instances_val*.json", "val.json", "*/val.json"),
}
_NAMED = 3
"""Names listed per kind of problem."""


class CocoImages:
    """The usable images of one annotation file, read on access.

    Args:
        annotations: Instances file in COCO format.
        places: Folders and tar files to search for the images.
        masks: Whether targets have masks, if every object has one; decoding takes time.
    """

    def __init__(
        self, annotations: Path, places: Sequence["ImageStore"], *, masks: bool = True
    ) -> None:
        content = _read_json(annotations)
        problems = _Problems(annotations.name)
        ids = sorted(int(entry["id"]) for entry in content["categories"])
        names = {
            int(entry["id"]): str(entry["name"]) for entry in content["categories"]
        }
        self.categories = tuple(names[number] for number in ids)
        self._labels = {number: label for label, number in enumerate(ids, start=1)}
        self._images = list(_usable_images(content["images"], places, problems))
        objects = self._sorted_in(content, problems)
        self.has_masks = all(
            entry.get("segmentation") for found in objects.values() for entry in found
        )
        self._decodes = masks and self.has_masks
        used = ["bbox", "category_id", "iscrowd"]
        used += ["segmentation"] if self._decodes else []
        self._objects = _Packed(
            [
                {key: entry[key] for key in used if key in entry}
                for entry in objects[image.number]
            ]
            for image in self._images
        )
        self.problems = tuple(problems.sentences())

    def _sorted_in(
        self, content: Mapping[str, Any], problems: "_Problems"
    ) -> dict[int, list[Mapping[str, Any]]]:
        """Return the usable annotations of each image, in the order of the images."""
        objects: dict[int, list[Mapping[str, Any]]] = {
            image.number: [] for image in self._images
        }
        known = {entry["id"] for entry in content["images"]}
        sizes = {image.number: (image.height, image.width) for image in self._images}
        for entry in content["annotations"]:
            image, name = entry.get("image_id"), f"annotation {entry.get('id')}"
            if image not in known:
                problems.add("{} of an unknown image", name)
            elif image not in sizes:
                continue  # its image was skipped, and counted there
            elif entry.get("category_id") not in self._labels:
                problems.add("{} of an unknown category", name)
            elif _clipped(entry.get("bbox"), *sizes[image]) is None:
                problems.add("{} with an empty or inverted box", name)
            elif not _mask_fits(entry.get("segmentation"), sizes[image]):
                problems.add("{} whose mask size differs from the image", name)
            else:
                objects[image].append(entry)
        return objects

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> tuple[Tensor, dict[str, Tensor]]:
        return self.image(index), self.target(index)

    def image(self, index: int) -> Tensor:
        """Read an image, as bytes (3, height, width)."""
        found = self._images[index]
        try:
            pixels = np.array(found.place.open(found.name).convert("RGB"))
        except Exception as error:  # Pillow raises many kinds for a damaged file
            raise BrokenFile(str(found.place.path / found.name), str(error)) from error
        return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()

    def count(self, index: int) -> int:
        """Count the objects of an image, without crowds."""
        objects = self._objects[index]
        return sum(not entry.get("iscrowd", 0) for entry in objects)

    def target(self, index: int) -> dict[str, Tensor]:
        """Return boxes, labels, crowd flags and, if wanted and known, masks."""
        image = self._images[index]
        objects = self._objects[index]
        size = (image.height, image.width)
        boxes = [_clipped(entry["bbox"], *size) for entry in objects]
        target = {
            "boxes": torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4),
            "labels": torch.tensor(
                [self._labels[entry["category_id"]] for entry in objects],
                dtype=torch.int64,
            ),
            "iscrowd": torch.tensor(
                [int(entry.get("iscrowd", 0)) for entry in objects], dtype=torch.int64
            ),
        }
        if self._decodes:
            decoded = [_decode(entry["segmentation"], size) for entry in objects]
            target["masks"] = (
                torch.from_numpy(np.stack(decoded))
                if decoded
                else torch.zeros((0, *size), dtype=torch.uint8)
            )
        return target


class _Packed:
    """Lists of annotations by index, packed into one block of memory.

    Worker processes share it. They would copy Python objects, whose reference counts
    they change.
    """

    def __init__(self, items: Iterable[Any]) -> None:
        packed = [json.dumps(item).encode() for item in items]
        self._ends = np.cumsum([0, *map(len, packed)])
        self._content = np.frombuffer(b"".join(packed), dtype=np.uint8)

    def __getitem__(self, index: int) -> Any:
        begin, end = self._ends[index], self._ends[index + 1]
        return json.loads(self._content[begin:end].tobytes())


def open_folder(folder: Path, *, masks: bool = True) -> tuple[CocoImages, CocoImages]:
    """Open a folder's training and test images."""
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder of images in COCO format.")
    train, test = (_annotations(folder, what) for what in _PARTS)
    return (
        CocoImages(train, list(_places(folder, train)), masks=masks),
        CocoImages(test, list(_places(folder, test)), masks=masks),
    )


@dataclass(frozen=True)
class ImageStore:
    """A folder or tar file of images."""

    path: Path
    offsets: Mapping[str, tuple[int, int]] | None = None
    """Offset and length of each member of the tar file."""

    def has(self, name: str) -> bool:
        """Return whether this store has an image of that name."""
        if self.offsets is not None:
            return name in self.offsets
        return (self.path / name).is_file()

    def open(self, name: str) -> Any:
        """Open an image; its pixels are read on access."""
        opener = sources.need("PIL.Image").open
        if self.offsets is None:
            return opener(self.path / name)
        begin, length = self.offsets[name]
        with self.path.open("rb") as file:
            file.seek(begin)
            return opener(io.BytesIO(file.read(length)))


@dataclass(frozen=True)
class _Image:
    """A readable image."""

    number: int
    name: str
    place: ImageStore
    height: int
    width: int


@dataclass
class _Problems:
    """Names of skipped entries, by reason."""

    file: str
    found: dict[str, list[str]] = field(default_factory=dict)

    def add(self, reason: str, name: str) -> None:
        """Record a skipped entry; ``{}`` in the reason stands for count and kind."""
        self.found.setdefault(reason, []).append(name)

    def sentences(self) -> Iterator[str]:
        """Yield one sentence per reason, with the count and the first names."""
        for reason, names in self.found.items():
            kind = "image" if "image" in reason.partition(" ")[0] else "annotation"
            what = f"{len(names)} {kind}{'' if len(names) == 1 else 's'}"
            shown = ", ".join(
                name.removeprefix("annotation ") for name in names[:_NAMED]
            )
            more = ", ..." if len(names) > _NAMED else ""
            skipped = reason.replace("{image}", what).replace("{}", what)
            yield f"{self.file}: {skipped} left out ({shown}{more})."


def _annotations(folder: Path, what: str) -> Path:
    for pattern in _PARTS[what]:
        found = sorted(folder.glob(pattern))
        if found:
            return found[0]
    there = ", ".join(sorted(path.name for path in folder.iterdir())[:5]) or "nothing"
    wanted = " or ".join(_PARTS[what][:2])
    raise UsageError(f"{folder} must contain {wanted} for {what}, got {there}.")


def _places(folder: Path, annotations: Path) -> Iterator[ImageStore]:
    part = annotations.stem.removeprefix("instances_")
    for path in (folder / part, folder / "images" / part, folder / "images"):
        if path.is_dir():
            yield ImageStore(path)
    for path in (folder / f"{part}.tar", folder / "images.tar"):
        if path.is_file():
            yield _open_tar(path)
    yield ImageStore(annotations.parent)
    yield ImageStore(folder)


def _open_tar(path: Path) -> ImageStore:
    try:
        with tarfile.open(path) as archive:
            members = [member for member in archive if member.isfile()]
    except (tarfile.TarError, OSError) as error:
        raise UsageError(f"{path} cannot be read as a tar file: {error}.") from None
    offsets = {}
    for member in members:
        where = (member.offset_data, member.size)
        # Annotations name images with or without their folder.
        offsets[member.name] = offsets[Path(member.name).name] = where
    return ImageStore(path, offsets)


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read as JSON: {error}.") from None
    wanted = ("images", "annotations", "categories")
    lists = isinstance(content, dict) and all(
        isinstance(content.get(key), list) for key in wanted
    )
    if not lists:
        raise UsageError(
            f"{path} must have the lists {', '.join(wanted)}, as COCO files do."
        )
    for key, fields in (
        ("images", ("id", "file_name")),
        ("categories", ("id", "name")),
    ):
        if not all(
            isinstance(e, dict) and set(fields) <= e.keys() for e in content[key]
        ):
            raise UsageError(
                f"{path}: every entry of {key} must have {' and '.join(fields)}."
            )
    if not content["categories"]:
        raise UsageError(f"{path} has no categories.")
    return dict(content)


def _usable_images(
    entries: Sequence[Mapping[str, Any]],
    places: Sequence[ImageStore],
    problems: _Problems,
) -> Iterator[_Image]:
    for entry in entries:
        name = str(entry["file_name"])
        place = next((place for place in places if place.has(name)), None)
        if place is None:
            problems.add("{image} missing,", name)
            continue
        try:
            width, height = place.open(name).size
        except OSError:  # PIL raises OSError for broken files
            problems.add("{image} that cannot be read,", name)
            continue
        declared = (entry.get("width", width), entry.get("height", height))
        if declared != (width, height):
            problems.add("{image} whose size differs from the annotations,", name)
            continue
        yield _Image(entry["id"], name, place, height, width)


def _clipped(box: Any, height: int, width: int) -> list[float] | None:
    """Clip a box to the image and return its corners; None if no area is left."""
    try:
        x, y, wide, high = (float(number) for number in box)
    except (TypeError, ValueError):
        return None
    if not all(map(math.isfinite, (x, y, wide, high))):
        return None
    corners = [max(x, 0.0), max(y, 0.0), min(x + wide, width), min(y + high, height)]
    return corners if corners[2] > corners[0] and corners[3] > corners[1] else None


def _mask_fits(segmentation: Any, size: tuple[int, int]) -> bool:
    """Return whether a mask decodes to its image's size; no mask is fine."""
    if isinstance(segmentation, dict):
        return tuple(segmentation.get("size", ())) == size
    if isinstance(segmentation, list):
        return all(len(part) >= 6 and len(part) % 2 == 0 for part in segmentation)
    return segmentation is None


def _decode(segmentation: Any, size: tuple[int, int]) -> np.ndarray[Any, Any]:
    """Decode polygons or run lengths to a mask of zeros and ones."""
    codec = sources.need("pycocotools.mask")
    if isinstance(segmentation, list):
        runs = codec.merge(codec.frPyObjects(segmentation, *size))
    elif isinstance(segmentation["counts"], list):
        runs = codec.frPyObjects(segmentation, *size)
    else:
        runs = segmentation
    mask: np.ndarray[Any, Any] = codec.decode(runs)
    return mask
