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
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from switch_ema.bench.broken_files import BrokenFile
from switch_ema.bench.errors import UsageError
from switch_ema.zoo.data import sources
from switch_ema.zoo.data.json_entries import elements, members

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
        content = _AnnotationFile(annotations)
        problems = _Problems(annotations.name)
        names = {int(e["id"]): str(e["name"]) for e in content["categories"]}
        ids = sorted(names)
        self.categories = tuple(names[number] for number in ids)
        self._labels = {number: label for label, number in enumerate(ids, start=1)}
        known = {entry["id"] for entry in content["images"]}
        self._images = list(_usable_images(content["images"], places, problems))
        sizes = {image.number: (image.height, image.width) for image in self._images}
        # Packed one by one: as Python objects, those of COCO would take gigabytes.
        objects: dict[int, list[bytes]] = {number: [] for number in sizes}
        self.has_masks = True
        for entry in content["annotations"]:
            if not isinstance(entry, dict):
                raise UsageError(
                    f"{annotations}: every entry of annotations must be an object, got "
                    f"{entry!r}."
                )
            if self._is_usable(entry, known, sizes, problems):
                objects[entry["image_id"]].append(_packed(entry, masks=masks))
                self.has_masks &= bool(entry.get("segmentation"))
        del content  # its text
        self._decodes = masks and self.has_masks
        self._objects = _Packed([objects.pop(image.number) for image in self._images])
        self.problems = tuple(problems.sentences())

    def _is_usable(
        self,
        entry: Mapping[str, Any],
        known: Collection[int],
        sizes: Mapping[int, tuple[int, int]],
        problems: "_Problems",
    ) -> bool:
        """Whether an annotation can be used; if not, note why.

        Args:
            entry: The annotation.
            known: Numbers of all images in the file.
            sizes: Height and width of the usable ones.
            problems: Takes the reason.
        """
        image: Any = entry.get("image_id")
        name = f"annotation {entry.get('id')}"
        if image not in known:
            problems.add("{} of an unknown image", name)
        elif image not in sizes:
            pass  # its image was skipped, and counted there
        elif entry.get("category_id") not in self._labels:
            problems.add("{} of an unknown category", name)
        elif _clipped(entry.get("bbox"), *sizes[image]) is None:
            problems.add("{} with an empty or inverted box", name)
        elif not _mask_fits(entry.get("segmentation"), sizes[image]):
            problems.add("{} whose mask size differs from the image", name)
        else:
            return True
        return False

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

    def __init__(self, items: Sequence[list[bytes]]) -> None:
        lengths = [sum(map(len, item)) + max(len(item) - 1, 0) for item in items]
        self._ends = np.cumsum([0, *lengths])
        self._content = np.empty(self._ends[-1], dtype=np.uint8)
        for item, begin, end in zip(
            items, self._ends[:-1], self._ends[1:], strict=True
        ):
            joined = b",".join(item)
            self._content[begin:end] = np.frombuffer(joined, dtype=np.uint8)
            item.clear()  # not in memory twice

    def __getitem__(self, index: int) -> Any:
        begin, end = self._ends[index], self._ends[index + 1]
        return json.loads(b"[" + self._content[begin:end].tobytes() + b"]")


def _packed(entry: Mapping[str, Any], *, masks: bool) -> bytes:
    """Return what is used of an annotation as JSON."""
    used = ["bbox", "category_id", "iscrowd", *(["segmentation"] if masks else [])]
    kept = {key: entry[key] for key in used if key in entry}
    return json.dumps(kept, separators=(",", ":")).encode()


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


class _AnnotationFile:
    """The lists of an annotation file; annotations are parsed one at a time.

    Those of COCO take 0.4 GB as text and would take 3 GB as Python objects.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._text = path.read_text()
            self._starts = dict(members(self._text))
        except (OSError, ValueError) as error:
            raise UsageError(f"{path} cannot be read as JSON: {error}.") from None
        wanted = ("images", "annotations", "categories")
        starts = (self._starts.get(key, len(self._text)) for key in wanted)
        if not all(self._text.startswith("[", start) for start in starts):
            raise UsageError(
                f"{path} must have the lists {', '.join(wanted)}, as COCO files do."
            )
        for key, fields in (
            ("images", ("id", "file_name")),
            ("categories", ("id", "name")),
        ):
            if not all(
                isinstance(e, dict) and set(fields) <= e.keys() for e in self[key]
            ):
                raise UsageError(
                    f"{path}: every entry of {key} must have {' and '.join(fields)}."
                )
        if next(self["categories"], None) is None:
            raise UsageError(f"{path} has no categories.")

    def __getitem__(self, key: str) -> Iterator[Any]:
        """Parse the entries of a list, one after the other."""
        return elements(self._text, self._starts[key])


def _usable_images(
    entries: Iterable[Mapping[str, Any]],
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
