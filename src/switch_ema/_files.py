"""Writes files so that a reader finds a whole one or none."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Union

Content = Union[str, bytes, Callable[[Path], object]]


def write_atomically(path: str | os.PathLike[str], content: Content) -> Path:
    """Write a file completely or not at all; an earlier one is replaced in one go.

    The content goes to a temporary file in the same folder, is forced to the disk
    (fsync), and only then gets its name. So a reader never sees half of it, and neither
    a kill nor a loss of power leaves anything but the old or the new file under the
    name. A kill in between leaves the temporary file, which :func:`remove_unfinished`
    deletes.

    Args:
        path: where the file is to be; its folder has to exist.
        content: text (written as UTF-8), bytes, or a function that writes to the path
            that it is given.

    Returns:
        The path.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> write_atomically(folder / "note.txt", "text").read_text()
        'text'
        >>> [path.name for path in folder.iterdir()]
        ['note.txt']
    """
    path = Path(path)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}{_ENDING}")
    try:
        if callable(content):
            content(unfinished)
        else:
            raw = content.encode() if isinstance(content, str) else content
            unfinished.write_bytes(raw)
        _force_to_disk(unfinished)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    _force_folder_to_disk(path.parent)
    return path


def write_folder_atomically(
    path: str | os.PathLike[str], fill: Callable[[Path], object]
) -> Path:
    """Write a folder completely or not at all; there must not be one of this name.

    Args:
        path: where the folder is to be; the folder above it has to exist.
        fill: a function that writes files into the folder that it is given.

    Returns:
        The path.
    """
    path = Path(path)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}{_ENDING}")
    unfinished.mkdir()
    try:
        fill(unfinished)
        for file in unfinished.iterdir():
            _force_to_disk(file)
        unfinished.rename(path)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    _force_folder_to_disk(path.parent)
    return path


def remove_unfinished(folder: Path) -> None:
    """Delete what killed writers have left behind in a folder that nobody writes to."""
    for path in folder.glob(f".*{_ENDING}"):
        path.unlink(missing_ok=True)


_ENDING = ".partial"
_NOT_FOR_FOLDERS = (
    errno.EACCES,
    errno.EPERM,
    errno.EISDIR,
    errno.EINVAL,
    errno.ENOTSUP,
)
"""Folders cannot be opened (Windows) or forced to the disk (some network drives): then
nothing else can be done. Other errors are the disk's."""


def _force_to_disk(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _force_folder_to_disk(path: Path) -> None:
    """Force the entries of a folder to the disk, such as a new name."""
    try:
        _force_to_disk(path)
    except OSError as error:
        if error.errno not in _NOT_FOR_FOLDERS:
            raise
