"""Faces with ages: a folder of images and a CSV file of their ages."""

import csv
import io
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from switch_ema.bench.errors import UsageError
from switch_ema.zoo.data import sources
from switch_ema.zoo.data.text_files import read_text
from switch_ema.zoo.data.vision import ImageFiles

COLUMNS = ("age", "path", "split")
_SPLITS = ("train", "val", "test")
_OLDEST = 200.0
"""Larger ages are errors; IMDB-WIKI is noisy and goes up to 186."""


@dataclass(frozen=True)
class Faces:
    """Images with ages in years."""

    x_train: ImageFiles
    y_train: Tensor
    x_test: ImageFiles
    y_test: Tensor


def load_faces(name: str, folder: str | None) -> Faces:
    """Load AgeDB or IMDB-WIKI in their usual preprocessed form.

    Args:
        name: ``agedb`` or ``imdb-wiki``.
        folder: Folder with the CSV file; its ``path`` column is relative to the folder.
    """
    if folder is not None:
        there = sorted(Path(folder).expanduser().glob("*.csv"))
        if len(there) != 1:
            raise UsageError(
                f"folder must contain one *.csv file, got {folder!r} with {len(there)}."
            )
        return _read_faces(there[0])
    files = sources.find_files(name)
    if files is None:
        raise sources.not_found(name)
    return _read_faces(files[0])


def _read_faces(path: Path) -> Faces:
    """Read a CSV with the columns age, path and split (train, val or test).

    The val split is not used.

    Raises:
        UsageError: A column or an image is missing, or a value is out of range; the
            message names the line.
    """
    rows = csv.DictReader(io.StringIO(read_text(path), newline=""))
    columns = rows.fieldnames or ()
    if any(column not in columns for column in COLUMNS):
        raise UsageError(
            f"{path}, line 1: the columns must include {', '.join(COLUMNS)}, "
            f"got {', '.join(columns)}."
        )
    paths: dict[str, list[str]] = {split: [] for split in _SPLITS}
    ages: dict[str, list[float]] = {split: [] for split in _SPLITS}
    for row in rows:
        where = f"{path}, line {rows.line_num}"
        split, image = row["split"], path.parent / (row["path"] or "")
        if split not in _SPLITS:
            raise UsageError(
                f"{where}: split must be {', '.join(_SPLITS)}, got {split!r}."
            )
        if not image.is_file():
            raise UsageError(f"{where}: image {row['path']!r} not found.")
        paths[split].append(str(image))
        ages[split].append(_age(row["age"], where))
    for split in ("train", "test"):
        if not paths[split]:
            raise UsageError(f"{path} has no rows with the split {split}.")
    return Faces(
        ImageFiles(paths["train"]),
        torch.tensor(ages["train"]),
        ImageFiles(paths["test"]),
        torch.tensor(ages["test"]),
    )


def _age(text: str | None, where: str) -> float:
    try:
        age = float(text or "")
    except ValueError:
        age = -1.0
    if not 0 <= age <= _OLDEST:
        raise UsageError(
            f"{where}: age must be a number from 0 to {_OLDEST:g}, got {text!r}."
        )
    return age
