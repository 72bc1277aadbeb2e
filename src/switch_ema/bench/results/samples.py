"""Pictures that the methods of a run have made, as PNG files in its folder."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from hashlib import sha1
from pathlib import Path

from switch_ema._files import read_inside, write_atomically

SAMPLES = "samples"
"""Folder below that of a run."""
_LIST = "samples.json"


@dataclass(frozen=True)
class SamplePicture:
    """One grid of pictures that a method has made."""

    method: str
    caption: str
    """Empty where the task has given none."""
    file: str
    """Name of the PNG file, in the folder of its task."""
    png: bytes = b""
    """Content of the file; filled in by :func:`load_samples`."""


def save_samples(
    folder: Path, task: str, samples: Mapping[str, Mapping[str, bytes]]
) -> None:
    """Write pictures by method and caption; those of other methods stay.

    Only the process that owns the run's folder may call it.
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
    """Read a task's pictures in the order of the methods.

    Files that were deleted are missing, and so are links: a page must not show files
    from outside of its run.
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
    except (TypeError, ValueError, RecursionError):  # damaged: as if there were none
        return []
    return [one for one in listed if isinstance(one.file, str)]


def _read(folder: Path, task: str, name: str) -> bytes | None:
    try:
        return read_inside(folder, SAMPLES, _slug(task), name)
    except (OSError, ValueError):  # also names that no file has
        return None


def _folder_of(folder: Path, task: str) -> Path:
    return folder / SAMPLES / _slug(task)


def _slug(text: str) -> str:
    """Name a file after a task or method; the hash tells similar names apart.

    >>> _slug("ema:decay=0.9")
    'ema-decay-0-9-d14b90'
    """
    words = re.sub(r"[\W_]+", "-", text).strip("-")[-40:]
    return f"{words}-{sha1(text.encode()).hexdigest()[:6]}"
