"""Downloads, through torchvision or datasets, into the publishers' layouts."""

import csv
import io
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from switch_ema._files import write_atomically
from switch_ema.bench.errors import UsageError
from switch_ema.zoo.data import sources
from switch_ema.zoo.data.catalog import DATASETS, Dataset


def find_or_download(name: str, *, download: bool) -> tuple[Path, ...]:
    """Return a dataset's files; download them first if allowed and missing."""
    files = sources.find_files(name)
    if files is None and download:
        download_dataset(name)
        files = sources.find_files(name)
    if files is None:
        raise sources.not_found(name)
    return files


def download_dataset(name: str) -> Path:
    """Download a dataset into the user's folder, if it is writable, or the cache.

    Returns:
        The folder.

    Raises:
        UsageError: No library can download it, or the download failed.
    """
    dataset = DATASETS[name]
    if not dataset.can_download:
        raise UsageError(
            f"no library can download {name}: get it from {dataset.page} and set "
            f"{sources.FOLDER} to its folder."
        )
    folder = sources.data_folder()
    if folder is None or not os.access(folder, os.W_OK):
        folder = sources.download_folder()
    folder.mkdir(parents=True, exist_ok=True)
    lock = sources.need("filelock").FileLock(folder / f".{name}.lock")
    try:
        with lock:  # trainings that run at the same time may all want it
            if sources.find_files(name) is None:
                _download(dataset, name, folder)
    # Networks, servers and both libraries fail in their own ways.
    except (RuntimeError, OSError, ValueError, ImportError) as error:
        if isinstance(error, UsageError):
            raise
        raise sources.download_failed(name, error) from None
    return folder


def _download(dataset: Dataset, name: str, folder: Path) -> None:
    if not dataset.torchvision:
        _HUB[name](dataset.hub, folder)
        return
    make = getattr(sources.need("torchvision.datasets"), dataset.torchvision)
    make(folder, download=True)  # gets the files of all parts, and verifies checksums


def _wikitext(hub: str, folder: Path) -> None:
    name, _, config = hub.partition(":")
    target = folder / config.removesuffix("-v1")
    target.mkdir(exist_ok=True)
    for part, stored in _parts(name, config, ("train", "validation", "test")):
        short = "valid" if part == "validation" else part
        _write(target / f"wiki.{short}.tokens", (row["text"] for row in stored))


def _yelp(hub: str, folder: Path) -> None:
    target = folder / "yelp_review_full_csv"
    target.mkdir(exist_ok=True)
    for part, stored in _parts(hub, None, ("train", "test")):
        rows = ((row["label"] + 1, row["text"]) for row in stored)
        _write(target / f"{part}.csv", map(_quoted, rows))


def _quoted(row: Sequence[object]) -> str:
    line = io.StringIO()
    csv.writer(line, quoting=csv.QUOTE_ALL, lineterminator="\n").writerow(row)
    return line.getvalue()


_HUB: dict[str, Callable[[str, Path], None]] = {
    "wikitext2": _wikitext,
    "wikitext103": _wikitext,
    "yelp": _yelp,
}
"""Writes what the hub has in the publisher's layout."""


def _parts(name: str, config: str | None, parts: tuple[str, ...]) -> Any:
    load = sources.need("datasets").load_dataset
    for part in parts:
        yield part, load(name, config, split=part)


def _write(path: Path, lines: Iterable[str]) -> None:
    """Write a text file completely or not at all."""

    def write(unfinished: Path) -> None:
        with unfinished.open("w", encoding="utf-8", newline="") as file:
            file.writelines(lines)

    write_atomically(path, write)
