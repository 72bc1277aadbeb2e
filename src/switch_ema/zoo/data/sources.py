"""Where data comes from: the user's folder, a library, or a download on request."""

import importlib
import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from switch_ema._extras import needed
from switch_ema.bench.errors import UsageError

FOLDER = "SWITCH_EMA_DATA"
_INSTALL = 'pip install "switch-ema[toy]"'
_EXTRAS = {
    "diffusers": "generation",
    "lightly": "self-supervised",
    "mnist1d": "toy",
    "PIL": "vision",
    "pycocotools": "detection",
    "sklearn": "toy",
    "timm": "vision",
    "torch_fidelity": "generation",
    "torchvision": "vision",
}
"""The smallest extra with each module; what only some options need is found here."""

FILES: dict[str, tuple[str, ...]] = {
    "mnist": ("mnist.npz",),
    "fashion_mnist": ("fashion_mnist.npz",),
    "cifar10": ("cifar10.npz",),
    "cifar100": ("cifar100.npz",),
    "stl10": ("stl10.npz",),
    "imagenet": ("imagenet/train", "imagenet/val"),
    "celeba": ("celeba/img_align_celeba",),
    "wikitext2": ("wikitext2/valid.txt", "wikitext2/test.txt"),
    "wikitext103": ("wikitext103/*train*", "wikitext103/*test*"),
    "ptb": ("ptb/*train.txt", "ptb/*test.txt"),
    "bccd": ("bccd/train.json", "bccd/val.json", "bccd/images*"),
    "coco": (
        "coco/annotations/instances_train*.json",
        "coco/annotations/instances_val*.json",
    ),
    "nuclei": ("masks/train.json", "masks/val.json", "masks/images*"),
    "agedb": ("agedb/*.csv",),
    "imdb-wiki": ("imdb_wiki/*.csv",),
    "sst2": ("sst2/train.tsv", "sst2/test.tsv"),
    "reviews": ("reviews/train.tsv", "reviews/test.tsv"),
    "yelp": ("yelp/train.csv", "yelp/test.csv"),
}
"""File patterns to search for in the data folder, by dataset."""

DOWNLOADS: dict[str, tuple[str, str]] = {
    "mnist": ("MNIST", "MNIST"),
    "fashion_mnist": ("FashionMNIST", "FashionMNIST"),
    "cifar10": ("CIFAR10", "cifar-10-batches-py"),
    "cifar100": ("CIFAR100", "cifar-100-python"),
    "stl10": ("STL10", "stl10_binary"),
}
"""Torchvision's class and the folder its download creates, by dataset."""

LIBRARIES: dict[str, str] = {
    "digits": "sklearn",
    "circles and moons": "sklearn",
    "mnist1d": "mnist1d",
    "pydoc": "pydoc_data",
}
"""The module that ships each dataset."""


@dataclass(frozen=True)
class DataSource:
    """A dataset: whether it was found, and how to get it."""

    name: str
    found: bool
    where: str
    """Where it was found; empty if missing."""
    how: str
    """How to get it."""


def catalogue() -> list[DataSource]:
    """List every dataset that a task can use."""
    sources = []
    for name, module in LIBRARIES.items():
        found = importlib.util.find_spec(module) is not None
        where = f"comes with {module}" if found else ""
        how = "comes with Python" if name == "pydoc" else _INSTALL
        sources.append(DataSource(name, found, where, how))
    for name in FILES:
        files, downloaded = find_files(name), find_download(name)
        places = [str(path) for path in files or ()] or [str(downloaded or "")]
        found = files is not None or downloaded is not None
        sources.append(DataSource(name, found, ", ".join(places), _how_to_get(name)))
    return sources


def data_folder() -> Path | None:
    """Return the user's data folder, if one is set."""
    given = os.environ.get(FOLDER)
    if not given:
        return None
    folder = Path(given).expanduser()
    if not folder.is_dir():
        raise UsageError(f"{FOLDER} is {given!r}, which is not a folder.")
    return folder


def find_files(name: str) -> tuple[Path, ...] | None:
    """Return a dataset's files in the user's folder; None if any is missing."""
    folder = data_folder()
    if folder is None:
        return None
    found = [sorted(folder.glob(pattern))[:1] for pattern in FILES[name]]
    return tuple(paths[0] for paths in found) if all(found) else None


def download_folder() -> Path:
    """Return the download folder."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "switch-ema"


def find_download(name: str) -> Path | None:
    """Return the folder of an earlier download, if any."""
    if name not in DOWNLOADS:
        return None
    folder = download_folder() / DOWNLOADS[name][1]
    return folder if folder.is_dir() else None


def _how_to_get(name: str) -> str:
    """Return advice on how to get a missing dataset."""
    files = " and ".join(FILES[name])
    other = ", or pass the option download=True" if name in DOWNLOADS else ""
    if name == "imagenet":
        other = ", or pass its path as the option folder"
    return f"set {FOLDER} to a folder with {files}{other}"


def not_found(name: str) -> UsageError:
    """Build the error for missing data: what was found and what to do."""
    folder = data_folder()
    if folder is None:
        state = f"{FOLDER} is not set"
    else:
        there = [
            pattern
            for patterns in FILES.values()
            for pattern in patterns
            if any(folder.glob(pattern))
        ]
        found = ", ".join(there) or "no known files"
        state = f"{FOLDER} has {found}, but not {' and '.join(FILES[name])}"
    return UsageError(f"the data {name} was not found ({state}): {_how_to_get(name)}.")


def download_failed(name: str, error: Exception) -> UsageError:
    """Build the error for a failed download: the reason and what to do instead."""
    reason = str(error).strip().partition("\n")[0]
    return UsageError(f"downloading {name} failed ({reason}): {_how_to_get(name)}.")


def need(module: str) -> ModuleType:
    """Import a module of an extra; if it is missing, say how to install it."""
    extra = _EXTRAS.get(module.partition(".")[0], "bench")
    with needed(None, extra, error=UsageError):
        return importlib.import_module(module)
