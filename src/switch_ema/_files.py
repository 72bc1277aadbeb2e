"""Atomic writes of files and folders, and reads that follow no links."""

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
    """Write a file completely or not at all, replacing an existing one atomically.

    The content is written to a temporary file in the same folder, synced to disk
    (fsync) and then renamed. Readers never see a partial file: after a kill or a power
    loss, the path holds either the old or the new content. A kill may leave the
    temporary file behind; :func:`remove_unfinished` deletes it.

    Args:
        path: path of the file; its folder must exist.
        content: text (written as UTF-8), bytes, or a function that is called with a
            path and writes to it.

    Returns:
        The path.

    Examples:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> write_atomically(folder / "note.txt", "text").read_text()
        'text'
        >>> [path.name for path in folder.iterdir()]
        ['note.txt']
    """
    path = Path(path)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}{_ENDING}")
    unfinished.unlink(missing_ok=True)  # do not write through a link of this name
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
    """Write a folder completely or not at all; it must not exist yet.

    Args:
        path: path of the folder; its parent must exist.
        fill: a function that is called with a folder and writes files into it.

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
    """Read a regular file below a folder without following links on the way.

    Nothing outside the folder is read, whatever it contains. The folder itself may be a
    link.

    Args:
        folder: folder to start from.
        names: names of the folders below it and, last, of the file.

    Raises:
        OSError: the file does not exist, or a name is that of a link, a pipe or a
            device, or leads out of the folder.

    Examples:
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
        # Without O_NONBLOCK, opening a pipe would wait for a writer.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        file = os.open(names[-1], flags, dir_fd=place)
    finally:
        os.close(place)
    with os.fdopen(file, "rb") as opened:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", names[-1])
        return opened.read()


def remove_unfinished(folder: Path) -> None:
    """Delete the temporary files of killed writers; nobody may be writing here."""
    for path in folder.glob(f".*{_ENDING}"):
        path.unlink(missing_ok=True)


def remove_leftovers(path: Path) -> None:
    """Delete temporary files of one path whose writers are no longer running."""
    start = f".{path.name}."
    for left in path.parent.glob(f"{glob.escape(start)}*{_ENDING}"):
        writer = left.name[len(start) : -len(_ENDING)]
        if writer.isdecimal() and not _is_running(int(writer)):
            if left.is_dir() and not left.is_symlink():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)


def _is_running(process: int) -> bool:
    """Whether another process with this id is running; True if in doubt."""
    if process == os.getpid():
        return False
    if os.name != "posix":  # on Windows, os.kill(process, 0) would end the process
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
"""Errors where folders cannot be opened (Windows) or synced (some network drives):
nothing can be done, so they are ignored. Other errors mean that the disk failed."""


def _force_to_disk(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _force_folder_to_disk(path: Path) -> None:
    """Sync the entries of a folder to disk, such as a renamed file."""
    try:
        _force_to_disk(path)
    except OSError as error:
        if error.errno not in _NOT_FOR_FOLDERS:
            raise
