"""Sample images of a run's methods, as PNG files in its folder."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from hashlib import sha1
from pathlib import Path

from switch_ema._files import read_inside, write_atomically

_SAMPLES = "samples"
"""Subfolder of a run."""
_LIST = "samples.json"


@dataclass(frozen=True)
class SamplePicture:
    """One grid of sample images of a method."""

    method: str
    caption: str
    """Empty if the task gave none."""
    file: str
    """Name of the PNG file in the task's folder."""
    png: bytes = b""
    """Content of the file; filled in by :func:`load_samples`."""


def save_samples(
    folder: Path, task: str, samples: Mapping[str, Mapping[str, bytes]]
) -> None:
    """Write images by method and caption; those of other methods stay.

    The caller must hold the lock of the run folder.
    """
    if not samples:
        return
    target = _folder_of(folder, task)
    target.mkdir(parents=True, exist_ok=True)
    kept = [one for one in _listed(folder, task) if one.method not in samples]
    for method, pictures in samples.items():
        for number, (caption, png) in enumerate(pictures.items(), start=1):
            file = f"{_slug(method)}-{number}.png"
            write_atomically(target / file, png)
            kept.append(SamplePicture(method, caption, file))
    listed = [{k: v for k, v in asdict(one).items() if k != "png"} for one in kept]
    write_atomically(target / _LIST, json.dumps(listed, indent=1))


def load_samples(
    folder: Path, task: str, methods: Iterable[str]
) -> tuple[SamplePicture, ...]:
    """Read a task's images in the order of the methods.

    Skips deleted files and links: a page must not show files from outside of its run.
    """
    listed = _listed(folder, task)
    return tuple(
        SamplePicture(one.method, one.caption, one.file, png)
        for method in methods
        for one in listed
        if one.method == method and (png := _read(folder, task, one.file)) is not None
    )


def _listed(folder: Path, task: str) -> list[SamplePicture]:
    try:
        stored = json.loads(_read(folder, task, _LIST) or "[]")
        listed = [SamplePicture(**one) for one in stored]
    except (TypeError, ValueError, RecursionError):  # damaged: treat as empty
        return []
    return [one for one in listed if isinstance(one.file, str)]


def _read(folder: Path, task: str, name: str) -> bytes | None:
    try:
        return read_inside(folder, _SAMPLES, _slug(task), name)
    except (OSError, ValueError):  # missing, or not a valid file name
        return None


def _folder_of(folder: Path, task: str) -> Path:
    return folder / _SAMPLES / _slug(task)


def _slug(text: str) -> str:
    """Derive a file name from a task or method; the hash keeps similar names apart.

    >>> _slug("ema:decay=0.9")
    'ema-decay-0-9-d14b90'
    """
    words = re.sub(r"[\W_]+", "-", text).strip("-")[-40:]
    return f"{words}-{sha1(text.encode()).hexdigest()[:6]}"
