"""A cache of compiled code that other users can neither write to nor replace.

We execute this code, so a folder is used only if nobody but this user and root can
write to it or to any folder above it, and a file only if its digest matches. A file is
opened and read once, and the bytes that were verified are the ones used.
"""

import hashlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_LEFT_BEHIND = 600
"""Age in seconds after which temporary files count as abandoned."""
_DIGEST = hashlib.sha256().digest_size


def cache_folder() -> Path | None:
    """Return the folder for compiled code; None if others could write to it."""
    caches = os.environ.get("XDG_CACHE_HOME", "")
    try:
        if not os.path.isabs(caches):  # the XDG specification says to ignore these
            caches = str(Path.home() / ".cache")
        folder = Path(os.path.realpath(caches)) / "switch-ema"
        return folder if _make_private(folder) else None
    except (OSError, RuntimeError, ValueError):  # RuntimeError: no home folder
        return None


@contextmanager
def work_folder(within: Path | None) -> Iterator[Path]:
    """Create a temporary folder, in the given one or else in the system's.

    Raises:
        OSError: others can write to every candidate.
    """
    if within is None or not os.access(within, os.W_OK):
        within = Path(os.path.realpath(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix="compiling-", dir=within) as name:
        if not _is_private(Path(name)):
            raise PermissionError(f"Others can write to {within}.")
        yield Path(name)


def _is_private(folder: Path) -> bool:
    """Whether no other user can write to a folder or replace one above it.

    Checks from the root down: others cannot change a folder that has passed, so its
    next entry cannot be replaced after we look at it.
    """
    return all(_is_safe(part, below) for part, below in _steps(folder))


def _make_private(folder: Path) -> bool:
    for part, below in _steps(folder):
        with suppress(FileExistsError):
            if not part.exists():
                part.mkdir(mode=0o700)
        if not _is_safe(part, below):
            return False
    return True


def _steps(folder: Path) -> Iterator[tuple[Path, Path | None]]:
    """List the folders of a path from the root down, each with the next one."""
    parts = [*reversed(folder.parents), folder]
    return zip(parts, [*parts[1:], None], strict=True)


def _is_safe(folder: Path, below: Path | None) -> bool:
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid not in (0, os.geteuid()):
        return False
    if not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return True
    # In a sticky folder such as /tmp everybody can create entries, but only the owner
    # can remove or rename them.
    if below is None or not status.st_mode & stat.S_ISVTX:
        return False
    return not below.exists() or below.lstat().st_uid == os.geteuid()


def keep(path: Path, content: bytes, work: Path) -> None:
    """Write content and its digest to a file, for :func:`read_kept`.

    Args:
        path: file in a folder that nobody else can write to.
        content: bytes to store.
        work: temporary folder on the same disk.
    """
    complete = work / path.name
    file = os.open(complete, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(file, "wb") as stream:
        stream.write(content + hashlib.sha256(content).digest())
        stream.flush()
        os.fsync(stream.fileno())
    complete.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read_kept(path: Path) -> bytes | None:
    """Return the stored content; None unless this user wrote it and it is intact."""
    # O_NONBLOCK: if it is a pipe, do not wait for a writer.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        with os.fdopen(os.open(path, flags), "rb") as file:
            status = os.fstat(file.fileno())
            by_others = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
            is_mine = status.st_uid == os.geteuid() and not by_others
            if not stat.S_ISREG(status.st_mode) or not is_mine:
                return None
            whole = file.read()
    except OSError:
        return None
    content, digest = whole[:-_DIGEST], whole[-_DIGEST:]
    return content if hashlib.sha256(content).digest() == digest else None


def sealed_file(content: bytes) -> int:
    """Return an in-memory file with this content, sealed against any change.

    Keep it open as long as the library loaded from /proc/self/fd/N is in use: the
    loader identifies libraries by name, and the number could be reused.

    Raises:
        OSError: the system has no in-memory files.
    """
    if not hasattr(os, "memfd_create"):
        raise OSError("This system has no in-memory files.")
    import fcntl  # not available on Windows

    file = os.memfd_create("switch-ema", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with os.fdopen(file, "wb", closefd=False) as stream:
            stream.write(content)
        seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, seals | fcntl.F_SEAL_SEAL)
    except BaseException:
        os.close(file)
        raise
    return file


def remove_leftovers(folder: Path) -> None:
    """Delete leftovers of killed processes and of version 0.1.0 from the folder."""
    with suppress(OSError):
        for path in [*folder.glob("compiling-*"), *folder.glob("kernels-*.so*")]:
            if time.time() - path.lstat().st_mtime < _LEFT_BEHIND:
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
