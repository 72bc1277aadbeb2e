"""Finds files of an untrusted checkpoint inside its folder.

Names and links that lead out of the folder, pipes and devices are refused. One
exception: in the Hugging Face cache, the files of ``snapshots/REVISION`` are links to
``blobs`` of the same repository.
"""

import io
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO


def locate(folder: Path, name: str, root: Path | None = None) -> Path:
    """Return the path of a regular file in a folder.

    Args:
        folder: the folder, which may itself be a link.
        name: the file's name, as in an index or other metadata.
        root: the root of the checkpoint, if the folder is inside it.

    Raises:
        ValueError: not the name of a regular file in the folder.
        OSError: the file does not exist.
    """
    if Path(name).name != name or name == ".." or "\0" in name:
        raise ValueError(f"{folder} refers to {name!r}, which is not a file in it.")
    path = folder / name
    home = Path(os.path.realpath(root or folder))
    places = [home]
    if home.parent.name == "snapshots":
        places.append(home.parent.parent / "blobs")
    if not any(Path(os.path.realpath(path)).is_relative_to(place) for place in places):
        raise ValueError(
            f"{path} is a link that leads out of {home} and is not followed; replace "
            "it by the file."
        )
    require_regular(path)
    return path


def require_regular(path: Path) -> None:
    """Raise ValueError for a pipe or a device, whose content may never end."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError(f"{path} is not a regular file.")


def files_below(
    folder: Path, name: str, root: Path | None = None
) -> Iterator[tuple[Path, str]]:
    """Yield the files to copy for an entry of a folder: itself, or those below it.

    Yields:
        The path of each file, and its path relative to the folder.

    Raises:
        ValueError: one of them is not a regular file inside the checkpoint.
    """
    path, root = folder / name, root or folder
    if not path.is_dir():
        yield locate(folder, name, root), name
        return
    if path.is_symlink():
        raise ValueError(f"{path} is a link to a folder; replace it by the folder.")
    for inner in sorted(os.listdir(path)):
        for file, rest in files_below(path, inner, root):
            yield file, f"{name}/{rest}"


def copy_file(source: Path, target: Path) -> None:
    """Copy a file that :func:`locate` has found."""
    # The path was resolved and checked; a link that appeared since is not followed.
    path = os.path.realpath(source)
    flags = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    with open(path, "rb", opener=lambda p, mode: os.open(p, mode | flags)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError(f"{source} is not a regular file.")
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as copy:
            shutil.copyfileobj(file, copy)


class FileSection(io.RawIOBase):
    """A section of a file, readable as a file."""

    def __init__(self, file: BinaryIO, offset: int, length: int) -> None:
        self._file, self._offset, self._length = file, offset, length
        self._position = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a position relative to the start of the section."""
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._length}
        self._position = max(0, start[whence] + offset)
        return self._position

    def readinto(self, memory: Any) -> int:
        """Read up to the end of the section."""
        count = min(len(memory), max(0, self._length - self._position))
        self._file.seek(self._offset + self._position)
        read = self._file.readinto(memoryview(memory)[:count])  # type: ignore[attr-defined]
        self._position += read
        return int(read)
