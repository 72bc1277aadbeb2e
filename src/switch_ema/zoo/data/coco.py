"""Any folder of images with boxes and masks in the format of COCO.

The files of annotations are found by their names: ``annotations/instances_train*.json``
and ``..._val*.json`` as in COCO, or ``train.json`` and ``val.json``. Images lie in
``train2017/``, in ``images/``, in ``images.tar`` or beside the annotations, under the
name that the annotations give.

Files are rarely perfect. What cannot be used (an image that is missing or broken, a box
without area, a category or an image that does not exist, a mask of another size than
its image) is left out, counted and named in ``problems``; the rest is used.
"""

import io
import json
import math
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from switch_ema.bench.errors import UsageError
from switch_ema.zoo.data import sources

_PARTS = {
    "training": ("annotations/instances_train*.json", "train.json", "*/train.json"),
    "tests": ("annotations/instances_val*.json", "val.json", "*/val.json"),
}
_NAMED = 3
"""How many of the things that were left out are named."""


class CocoImages:
    """The usable images of one file of annotations, read when they are looked at.

    Args:
        annotations: A file of instances in the format of COCO.
        places: Folders and tar files in which the images are looked for.
    """

    def __init__(self, annotations: Path, places: Sequence["ImageStore"]) -> None:
        content = _read_json(annotations)
        problems = _Problems(annotations.name)
        ids = sorted(int(entry["id"]) for entry in content["categories"])
        names = {
            int(entry["id"]): str(entry["name"]) for entry in content["categories"]
        }
        self.categories = tuple(names[number] for number in ids)
        self._labels = {number: label for label, number in enumerate(ids, start=1)}
        self._images = list(_usable_images(content["images"], places, problems))
        self._objects: dict[int, list[dict[str, Any]]] = {
            image.number: [] for image in self._images
        }
        self._sort_in(content, problems)
        self.has_masks = all(
            entry.get("segmentation")
            for objects in self._objects.values()
            for entry in objects
        )
        self.problems = tuple(problems.sentences())

    def _sort_in(self, content: Mapping[str, Any], problems: "_Problems") -> None:
        known = {entry["id"] for entry in content["images"]}
        sizes = {image.number: (image.height, image.width) for image in self._images}
        for entry in content["annotations"]:
            image, name = entry.get("image_id"), f"annotation {entry.get('id')}"
            if image not in known:
                problems.add("{} of an unknown image", name)
            elif image not in sizes:
                continue  # it went with its image, which was counted
            elif entry.get("category_id") not in self._labels:
                problems.add("{} of an unknown category", name)
            elif _clipped(entry.get("bbox"), *sizes[image]) is None:
                problems.add("{} with an empty or inverted box", name)
            elif not _mask_fits(entry.get("segmentation"), sizes[image]):
                problems.add("{} with a mask of another size than its image", name)
            else:
                self._objects[image].append(entry)

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> tuple[Tensor, dict[str, Tensor]]:
        return self.image(index), self.target(index)

    def image(self, index: int) -> Tensor:
        """Read an image, as bytes (3, height, width)."""
        found = self._images[index]
        pixels = np.array(found.place.open(found.name).convert("RGB"))
        return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()

    def count(self, index: int) -> int:
        """Return how many single objects an image has; crowds do not count."""
        objects = self._objects[self._images[index].number]
        return sum(not entry.get("iscrowd", 0) for entry in objects)

    def target(self, index: int) -> dict[str, Tensor]:
        """Return boxes, labels, crowds and, if all objects have them, masks."""
        image = self._images[index]
        objects = self._objects[image.number]
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
        if self.has_masks:
            decoded = [_decode(entry["segmentation"], size) for entry in objects]
            target["masks"] = (
                torch.from_numpy(np.stack(decoded))
                if decoded
                else torch.zeros((0, *size), dtype=torch.uint8)
            )
        return target


def open_folder(folder: Path) -> tuple[CocoImages, CocoImages]:
    """Open the training and the test images of a folder."""
    if not folder.is_dir():
        raise UsageError(f"{folder} is no folder of images in the format of COCO.")
    train, test = (_annotations(folder, what) for what in _PARTS)
    return (
        CocoImages(train, list(_places(folder, train))),
        CocoImages(test, list(_places(folder, test))),
    )


@dataclass(frozen=True)
class ImageStore:
    """A folder, or a tar file, that holds images."""

    path: Path
    offsets: Mapping[str, tuple[int, int]] | None = None
    """Where each member of a tar file begins, and how long it is."""

    def has(self, name: str) -> bool:
        """Return whether an image of that name is here."""
        if self.offsets is not None:
            return name in self.offsets
        return (self.path / name).is_file()

    def open(self, name: str) -> Any:
        """Open an image, whose pixels are read when they are asked for."""
        opener = sources.need("PIL.Image").open
        if self.offsets is None:
            return opener(self.path / name)
        begin, length = self.offsets[name]
        with self.path.open("rb") as file:
            file.seek(begin)
            return opener(io.BytesIO(file.read(length)))


@dataclass(frozen=True)
class _Image:
    """An image that can be read."""

    number: int
    name: str
    place: ImageStore
    height: int
    width: int


@dataclass
class _Problems:
    """What is left out, by the reason."""

    file: str
    found: dict[str, list[str]] = field(default_factory=dict)

    def add(self, reason: str, name: str) -> None:
        """Note one thing; ``{}`` stands for what kind of thing it is."""
        self.found.setdefault(reason, []).append(name)

    def sentences(self) -> Iterator[str]:
        """Say for each reason how many there are, and name the first."""
        for reason, names in self.found.items():
            kind = "image" if "image" in reason.partition(" ")[0] else "annotation"
            what = f"{len(names)} {kind}{'' if len(names) == 1 else 's'}"
            shown = ", ".join(
                name.removeprefix("annotation ") for name in names[:_NAMED]
            )
            more = ", ..." if len(names) > _NAMED else ""
            said = reason.replace("{image}", what).replace("{}", what)
            yield f"{self.file}: {said} left out ({shown}{more})."


def _annotations(folder: Path, what: str) -> Path:
    for pattern in _PARTS[what]:
        found = sorted(folder.glob(pattern))
        if found:
            return found[0]
    there = ", ".join(sorted(path.name for path in folder.iterdir())[:5]) or "nothing"
    wanted = " or ".join(_PARTS[what][:2])
    raise UsageError(f"{folder} must hold {wanted} for {what}; it holds {there}.")


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
        # Annotations name images with or without the folder that they lie in.
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
            f"{path} must hold the lists {', '.join(wanted)}, as files of COCO do."
        )
    for key, fields in (
        ("images", ("id", "file_name")),
        ("categories", ("id", "name")),
    ):
        if not all(
            isinstance(e, dict) and set(fields) <= e.keys() for e in content[key]
        ):
            raise UsageError(f"{path}: all {key} must have {' and '.join(fields)}.")
    if not content["categories"]:
        raise UsageError(f"{path} names no category.")
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
        except OSError:  # PIL's errors about broken files are such
            problems.add("{image} that cannot be read,", name)
            continue
        declared = (entry.get("width", width), entry.get("height", height))
        if declared != (width, height):
            problems.add("{image} of another size than the annotations say,", name)
            continue
        yield _Image(entry["id"], name, place, height, width)


def _clipped(box: Any, height: int, width: int) -> list[float] | None:
    """Return the corners of a box inside the image; None if there is no area."""
    try:
        x, y, wide, high = (float(number) for number in box)
    except (TypeError, ValueError):
        return None
    if not all(map(math.isfinite, (x, y, wide, high))):
        return None
    corners = [max(x, 0.0), max(y, 0.0), min(x + wide, width), min(y + high, height)]
    return corners if corners[2] > corners[0] and corners[3] > corners[1] else None


def _mask_fits(segmentation: Any, size: tuple[int, int]) -> bool:
    """Return whether a mask can be decoded to its image's size; none at all is fine."""
    if isinstance(segmentation, dict):
        return tuple(segmentation.get("size", ())) == size
    if isinstance(segmentation, list):
        return all(len(part) >= 6 and len(part) % 2 == 0 for part in segmentation)
    return segmentation is None


def _decode(segmentation: Any, size: tuple[int, int]) -> np.ndarray[Any, Any]:
    """Turn polygons or run lengths into a mask of zeros and ones."""
    codec = sources.need("pycocotools.mask")
    if isinstance(segmentation, list):
        runs = codec.merge(codec.frPyObjects(segmentation, *size))
    elif isinstance(segmentation["counts"], list):
        runs = codec.frPyObjects(segmentation, *size)
    else:
        runs = segmentation
    mask: np.ndarray[Any, Any] = codec.decode(runs)
    return mask
