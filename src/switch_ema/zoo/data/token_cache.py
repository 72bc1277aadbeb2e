"""Arrays made from large text files, kept on disk and mapped into memory.

The folder is named by the contents of the source files and by the settings, so a
changed file is tokenised again. It is written completely or not at all, by one process
at a time; all processes that read it share its pages.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path

import numpy as np

from switch_ema._files import write_folder_atomically
from switch_ema.zoo.data import sources

LARGE = 20_000_000
"""Files of more bytes are tokenised into the cache, smaller ones in memory."""
_PART = 2**20
"""Values of an array that are converted at a time."""


def cached_folder(
    files: tuple[Path, ...],
    settings: Mapping[str, object],
    fill: Callable[[Path], None],
) -> Path:
    """Return the folder with what ``fill`` makes from files; make it if missing.

    Args:
        files: The files, which name the folder by their contents.
        settings: What else the result depends on, as JSON.
        fill: Called with an empty folder to write to.
    """
    key = json.dumps([[_digest(path) for path in files], settings], sort_keys=True)
    name = hashlib.sha256(key.encode()).hexdigest()[:24]
    folder = sources.download_folder() / "tokens" / name
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = sources.need("filelock").FileLock(folder.with_suffix(".lock"))
        with lock:  # processes that start together would all tokenise
            if not folder.is_dir():
                write_folder_atomically(folder, fill)
    return folder


def mapped(path: Path) -> np.ndarray:
    """Map an array into memory; writes to it do not reach the file."""
    array: np.ndarray = np.load(path, mmap_mode="c", allow_pickle=False)
    return array


def write_translated(path: Path, values: np.ndarray, table: np.ndarray) -> None:
    """Write ``table[values]`` as an array, part by part."""
    out = np.lib.format.open_memmap(path, "w+", table.dtype, values.shape)
    for begin in range(0, len(values), _PART):
        part = slice(begin, begin + _PART)
        out[part] = table[values[part]]
    out.flush()


def count_values(values: np.ndarray, size: int) -> np.ndarray:
    """Count the values from 0 to ``size - 1``, part by part."""
    counts = np.zeros(size, dtype=np.int64)
    for begin in range(0, len(values), _PART):
        counts += np.bincount(values[begin : begin + _PART], minlength=size)
    return counts


def _digest(path: Path) -> str:
    state = path.stat()
    return _digest_of(path, state.st_size, state.st_mtime_ns)


@lru_cache(maxsize=16)
def _digest_of(path: Path, size: int, changed: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
