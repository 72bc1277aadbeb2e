"""Where data comes from: the user's folder, a library, or a download on request."""

import importlib
import importlib.util
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from switch_ema._extras import needed
from switch_ema.bench.errors import UsageError
from switch_ema.zoo.data.catalog import DATASETS, LIBRARIES

FOLDER = "SWITCH_EMA_DATA"
_INSTALL = 'pip install "switch-ema[toy]"'
_EXTRAS = {
    "datasets": "language",
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


@dataclass(frozen=True)
class DataSource:
    """A dataset: whether it was found, and how to get it."""

    name: str
    found: bool
    where: str
    """Where it was found; empty if missing."""
    how: str
    """How to get it."""
    page: str = ""
    """The publisher's page."""


def catalogue() -> list[DataSource]:
    """List every dataset that a task can use."""
    sources = []
    for name, module in LIBRARIES.items():
        found = importlib.util.find_spec(module) is not None
        where = f"comes with {module}" if found else ""
        how = "comes with Python" if name == "pydoc" else _INSTALL
        sources.append(DataSource(name, found, where, how))
    for name, dataset in DATASETS.items():
        place, how = find_folder(name), _how_to_get(name)
        where = "" if place is None else str(place)
        sources.append(DataSource(name, place is not None, where, how, dataset.page))
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


def download_folder() -> Path:
    """Return the download folder."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "switch-ema"


def find_files(name: str) -> tuple[Path, ...] | None:
    """Return a dataset's files, one per pattern of its layout; None if any is missing.

    The user's folder comes before earlier downloads.
    """
    given = data_folder()
    for folder in (*([given] if given else []), download_folder()):
        for layout in DATASETS[name].layouts:
            found = [sorted(folder.glob(pattern))[:1] for pattern in layout]
            if all(found):
                return tuple(paths[0] for paths in found)
    return None


def find_folder(name: str) -> Path | None:
    """Return the folder with all files of a dataset, or its only file."""
    files = find_files(name)
    return None if files is None else Path(os.path.commonpath(files))


def _how_to_get(name: str) -> str:
    """Return advice on how to get a missing dataset."""
    dataset = DATASETS[name]
    how = f"set {FOLDER} to a folder with {_looked_for(name)}"
    if dataset.torchvision:
        how += ", or pass the option download=True"
    if dataset.can_download:
        how += f", or run `switch-ema data {name} --download`"
    if name == "imagenet":
        how += ", or pass its path as the option folder"
    return how


def _looked_for(name: str) -> str:
    """Describe the layouts of a dataset."""
    return " or ".join(map(_described, DATASETS[name].layouts))


def _described(layout: Sequence[str]) -> str:
    """Describe a layout shortly, as a shell would.

    >>> _described(["ptb/train.txt", "ptb/test.txt"])
    'ptb/{train.txt,test.txt}'
    """
    folder = os.path.commonpath(layout)
    if len(layout) == 1 or (len(layout) > 2 and folder):
        return folder
    names = (os.path.relpath(path, folder or ".") for path in layout)
    return f"{folder}/{{{','.join(names)}}}".lstrip("/")


def not_found(name: str) -> UsageError:
    """Build the error for missing data: what was found and what to do."""
    state = f"{FOLDER} is not set"
    folder = data_folder()
    if folder is not None:
        there = [
            _described(layout)
            for dataset in DATASETS.values()
            for layout in dataset.layouts
            if not _missing(folder, layout)
        ]
        found = ", ".join(there) or "no known data"
        state = f"{FOLDER} has {found}, but not {_looked_for(name)}"
        for layout in DATASETS[name].layouts:
            missing = _missing(folder, layout)
            if len(missing) < len(layout):  # part of it is there
                state = f"{folder} lacks {', '.join(missing)}"
    return UsageError(f"the data {name} was not found ({state}): {_how_to_get(name)}.")


def _missing(folder: Path, layout: Sequence[str]) -> list[str]:
    return [pattern for pattern in layout if not any(folder.glob(pattern))]


def download_failed(name: str, error: Exception) -> UsageError:
    """Build the error for a failed download: the reason and what to do instead."""
    reason = str(error).strip().partition("\n")[0]
    return UsageError(f"downloading {name} failed ({reason}): {_how_to_get(name)}.")


def need(module: str) -> ModuleType:
    """Import a module of an extra; if it is missing, say how to install it."""
    extra = _EXTRAS.get(module.partition(".")[0], "bench")
    with needed(None, extra, error=UsageError):
        return importlib.import_module(module)
