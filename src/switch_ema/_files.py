"""Writes files so that a reader finds a whole one or none; reads without links."""

import errno
import glob
import os
import shutil
import stat
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
    unfinished.unlink(missing_ok=True)  # a link of this name would lead elsewhere
    try:
        if callable(content):
            content(unfinished)
        else:
            raw = content.encode() if isinstance(content, str) else content
            unfinished.write_bytes(raw)
        _force_to_disk(unfinished)
        os.replace(unfinished, path)
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
        for file in unfinished.rglob("*"):
            if file.is_file():
                _force_to_disk(file)
            else:
                _force_folder_to_disk(file)
        unfinished.rename(path)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    _force_folder_to_disk(path.parent)
    return path


def read_inside(folder: str | os.PathLike[str], *names: str) -> bytes:
    """Read a regular file below a folder without following any link on the way.

    Nothing outside of the folder is read, whatever somebody has put into it. The folder
    itself may be a link.

    Args:
        folder: where to begin.
        names: of the folders below it and, last, of the file.

    Raises:
        OSError: there is no such file, or a name belongs to a link, a pipe or a device,
            or leads out of the folder.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> _ = (folder / "note.txt").write_text("text")
        >>> read_inside(folder, "note.txt")
        b'text'
    """
    for name in names:
        if name != os.path.basename(name) or name in ("", os.curdir, os.pardir):
            raise OSError(errno.EINVAL, "not the name of a file", name)
    place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for name in names[:-1]:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
            inner = os.open(name, flags, dir_fd=place)
            os.close(place)
            place = inner
        # Without O_NONBLOCK a pipe would wait for a writer.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        file = os.open(names[-1], flags, dir_fd=place)
    finally:
        os.close(place)
    with os.fdopen(file, "rb") as opened:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", names[-1])
        return opened.read()


def remove_unfinished(folder: Path) -> None:
    """Delete what killed writers have left behind in a folder that nobody writes to."""
    for path in folder.glob(f".*{_ENDING}"):
        path.unlink(missing_ok=True)


def remove_leftovers(path: Path) -> None:
    """Delete what killed processes have left of writing one file or folder."""
    start = f".{path.name}."
    for left in path.parent.glob(f"{glob.escape(start)}*{_ENDING}"):
        writer = left.name[len(start) : -len(_ENDING)]
        if writer.isdecimal() and not _is_running(int(writer)):
            if left.is_dir() and not left.is_symlink():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)


def _is_running(process: int) -> bool:
    """Whether another process of this number runs; if in doubt, yes."""
    if process == os.getpid():
        return False
    if os.name != "posix":  # there, asking would end it
        return True
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    return True


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
